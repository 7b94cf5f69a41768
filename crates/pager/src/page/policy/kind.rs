//! The policies there are, by name.
use super::accessed::Accessed;
use super::contract::Policy;
use super::fifo::Fifo;
use super::s3fifo::S3Fifo;

/// The policies there are.
///
/// ```
/// use pagetide::{Policy, Region};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy: Policy = "fifo".parse()?; // from a configuration, say
/// assert_eq!(policy, Policy::Fifo);
/// let builder = Region::builder().length(64 << 20).resident(8 << 20).policy(policy);
/// # let _ = builder;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// [`Fifo`].
    Fifo,
    /// [`S3Fifo`].
    #[default]
    S3Fifo,
    /// [`Accessed`]: of whole programs (`pagetide run`), on Linux 7.3 and later.
    Accessed,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Fifo, Kind::S3Fifo, Kind::Accessed];
    /// Those that need nothing of the kernel, and are regions' too.
    pub const OF_REGIONS: [Kind; 2] = [Kind::Fifo, Kind::S3Fifo];

    /// A new policy of this kind.
    pub fn make(self) -> Box<dyn Policy> {
        match self {
            Kind::Fifo => Box::new(Fifo),
            Kind::S3Fifo => Box::new(S3Fifo::default()),
            Kind::Accessed => Box::new(Accessed),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Fifo => "fifo",
            Kind::S3Fifo => "s3fifo",
            Kind::Accessed => "accessed",
        }
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        Kind::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| {
                format!("'{text}' is no eviction policy; expected s3fifo, fifo or accessed")
            })
    }
}
