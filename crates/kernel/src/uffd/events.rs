//! What the kernel knows of events that are under way.
use crate::mask::{self, Masked};

/// Whether a call fails with [`Stop::EventPending`](super::Stop::EventPending) as long as *any*
/// event is under way. Before Linux 5.15 the kernel notes only whether there is one: the first of
/// several that is over ends that, and calls succeed while others are under way.
pub fn are_counted() -> bool {
    let release = rustix::system::uname();
    let release = release.release().to_str().unwrap_or_default();
    mask::check(Masked::EventCount, rustix::io::Errno::NOSYS).is_ok() && version(release) >= (5, 15)
}

/// Major and minor number of a release; what is no number counts as 0.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|word| word.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next())
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn releases_are_ordered() {
        assert_eq!(version("5.10.0-46-cloud-amd64"), (5, 10));
        assert!(version("5.4.0") < version("5.15.0-91-generic"));
        assert!(version("6.1-rc3") > version("5.15"));
        assert_eq!(version("what"), (0, 0));
    }
}
