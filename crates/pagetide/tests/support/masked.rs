//! The tests of a file once more, with what an older kernel lacks treated as absent.
use std::process::Command;

/// Linux 6.1, and 6.4 to 6.6.
pub const AS_LINUX_6_1: &str = "move,poison,pagemap-scan,process-madvise,wp-async,wp-unpopulated";
pub const AS_LINUX_6_6: &str = "move,pagemap-scan,process-madvise,wp-async";

/// Runs all other tests of this executable in a process of its own. One that is masked already runs
/// nothing more.
pub fn run_again(mask: &str) {
    const MASK: &str = "PAGETIDE_MASK";
    if std::env::var_os(MASK).is_some() {
        return;
    }
    let this = std::env::current_exe().expect("it runs");
    let output = Command::new(this)
        .args(["--skip", "masked::"])
        .env(MASK, mask)
        .output()
        .expect("it can be run again");
    assert!(
        output.status.success(),
        "{MASK}={mask}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Tests that run the others of this file as on older kernels.
#[macro_export]
macro_rules! masked {
    () => {
        mod masked {
            use super::support::masked::{AS_LINUX_6_1, AS_LINUX_6_6, run_again};

            #[test]
            fn as_linux_6_1() {
                run_again(AS_LINUX_6_1);
            }

            #[test]
            fn as_linux_6_6() {
                run_again(AS_LINUX_6_6);
            }
        }
    };
}
