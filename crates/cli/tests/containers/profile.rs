//! A container engine's own seccomp profile, as filters for a thread and what it starts.
use std::collections::BTreeMap;
use std::path::Path;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use serde::Deserialize;

/// Where the kernel's headers have the numbers of system calls, by name.
const NUMBERS: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";

/// A profile in the engines' format.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    default_action: String,
    #[serde(default)]
    default_errno_ret: Option<u32>,
    syscalls: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    names: Vec<String>,
    action: String,
    #[serde(default)]
    errno_ret: Option<u32>,
    #[serde(default)]
    args: Option<Vec<Argument>>,
    #[serde(default)]
    includes: Option<Condition>,
    #[serde(default)]
    excludes: Option<Condition>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Argument {
    index: u8,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

/// For which containers an entry is. The oldest kernel that it may name is older than any here.
#[derive(Deserialize, Default)]
struct Condition {
    #[serde(default)]
    caps: Vec<String>,
    #[serde(default)]
    arches: Vec<String>,
}

/// The filters of one engine's profile, in the order in which they are applied.
pub struct Filters(Vec<BpfProgram>);

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

impl Filters {
    /// Reads the profile in `file`, for a container with the `capabilities`.
    pub fn read(file: &Path, capabilities: &[&str]) -> Result<Filters, String> {
        let text = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let profile: Profile = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        let numbers = numbers()?;
        assert_eq!(profile.default_action, "SCMP_ACT_ERRNO");
        let mut allowed = Rules::new();
        let mut refused: BTreeMap<u32, Rules> = BTreeMap::new();
        for entry in profile
            .syscalls
            .iter()
            .filter(|entry| entry.is_for(capabilities))
        {
            let rules = match (entry.action.as_str(), entry.errno_ret) {
                ("SCMP_ACT_ALLOW", _) => &mut allowed,
                ("SCMP_ACT_ERRNO", errno) => refused.entry(errno.unwrap_or(1)).or_default(),
                (other, _) => return Err(format!("{other} is not known")),
            };
            // Those of other architectures have no number.
            let known = entry.names.iter().filter_map(|name| numbers.get(name));
            known.for_each(|number| add(rules, *number, entry));
        }
        // Of filters that refuse, the one that was applied last has its errno returned.
        let default = SeccompAction::Errno(profile.default_errno_ret.unwrap_or(1));
        let refusing = refused
            .into_iter()
            .map(|(errno, rules)| filter(rules, SeccompAction::Allow, SeccompAction::Errno(errno)));
        let all = [filter(allowed, default, SeccompAction::Allow)];
        Ok(Filters(all.into_iter().chain(refusing).collect()))
    }

    /// Puts the calling thread, and all that it starts, under them for good.
    pub fn apply(&self) {
        for filter in &self.0 {
            apply_filter(filter).expect("a filter can be applied");
        }
    }
}

impl Entry {
    fn is_for(&self, capabilities: &[&str]) -> bool {
        let has = |cap: &String| capabilities.contains(&cap.as_str());
        let here = |arch: &String| arch == "amd64";
        let none = Condition::default();
        let (includes, excludes) = (
            self.includes.as_ref().unwrap_or(&none),
            self.excludes.as_ref().unwrap_or(&none),
        );
        includes.caps.iter().all(has)
            && (includes.arches.is_empty() || includes.arches.iter().any(here))
            && !excludes.caps.iter().any(has)
            && !excludes.arches.iter().any(here)
    }
}

/// An entry without arguments is for all calls, whatever others say: an empty list of rules.
fn add(rules: &mut Rules, number: i64, entry: &Entry) {
    let conditions: Vec<SeccompCondition> = (entry.args.iter().flatten())
        .map(|argument| argument.condition())
        .collect();
    let is_for_all = rules.get(&number).is_some_and(Vec::is_empty);
    let list = rules.entry(number).or_default();
    if conditions.is_empty() {
        list.clear();
    } else if !is_for_all {
        list.push(SeccompRule::new(conditions).expect("it has conditions"));
    }
}

impl Argument {
    fn condition(&self) -> SeccompCondition {
        let (op, value) = match self.op.as_str() {
            "SCMP_CMP_EQ" => (SeccompCmpOp::Eq, self.value),
            "SCMP_CMP_NE" => (SeccompCmpOp::Ne, self.value),
            "SCMP_CMP_LT" => (SeccompCmpOp::Lt, self.value),
            "SCMP_CMP_GT" => (SeccompCmpOp::Gt, self.value),
            "SCMP_CMP_MASKED_EQ" => (SeccompCmpOp::MaskedEq(self.value), self.value_two),
            other => panic!("{other} is not known"),
        };
        SeccompCondition::new(self.index, SeccompCmpArgLen::Qword, op, value)
            .expect("calls have six arguments")
    }
}

fn filter(rules: Rules, otherwise: SeccompAction, matching: SeccompAction) -> BpfProgram {
    SeccompFilter::new(rules, otherwise, matching, TargetArch::x86_64)
        .and_then(BpfProgram::try_from)
        .expect("the kernel takes as many instructions")
}

fn numbers() -> Result<BTreeMap<String, i64>, String> {
    let text = std::fs::read_to_string(NUMBERS)
        .map_err(|error| format!("{NUMBERS}: {error} (package linux-libc-dev)"))?;
    let number = |line: &str| {
        let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    };
    Ok(text.lines().filter_map(number).collect())
}
