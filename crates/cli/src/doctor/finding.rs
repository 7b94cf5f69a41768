//! One thing that `pagetide doctor` examines.
use serde::Serialize;

/// How one thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Works.
    Ok,
    /// Works in part.
    Degraded,
    /// Does not work.
    Missing,
}

/// What depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// `run` does not work without it.
    Required,
    /// `run` is slower or serves fewer programs without it.
    Improves,
    /// `run` does not use it: other parts of Pagetide do, or it is said for information.
    Elsewhere,
}

/// One thing examined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The heading it belongs under.
    pub topic: &'static str,
    /// Its name.
    pub name: String,
    /// How it stands.
    pub status: Status,
    /// What depends on it.
    pub need: Need,
    /// What was seen.
    pub detail: String,
    /// What it is used for, and what is worse without it.
    pub used_for: String,
    /// The line that mends it, where something has to be mended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    /// Something that works.
    pub fn ok(
        topic: &'static str,
        name: &str,
        need: Need,
        detail: impl Into<String>,
        used_for: &str,
    ) -> Finding {
        Finding {
            topic,
            name: name.to_owned(),
            status: Status::Ok,
            need,
            detail: detail.into(),
            used_for: used_for.to_owned(),
            fix: None,
        }
    }

    /// The same, not working: `status` and the fix.
    pub fn but(mut self, status: Status, fix: impl Into<String>) -> Finding {
        self.status = status;
        self.fix = Some(fix.into());
        self
    }
}
