//! The exact line that mends a missing privilege, by situation: root or not, in a container or not.
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use pagetide_kernel::probe::Openings;
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::container::Container;

/// What decides how a problem is mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Situation {
    /// Root in its own user namespace.
    pub root: bool,
    /// In a container, where sysctls and devices are the host's to give.
    pub container: Option<Container>,
}

impl Situation {
    /// This process's situation.
    pub fn detect() -> Situation {
        Situation {
            root: geteuid().is_root(),
            container: Container::detect(),
        }
    }

    /// A command for root, as this user would type it.
    fn as_root(self, command: &str) -> String {
        if self.root {
            command.to_owned()
        } else {
            format!("sudo {command}")
        }
    }

    /// How to let this process open a userfaultfd that serves kernel-mode faults.
    pub fn userfaultfd(self, openings: &Openings) -> String {
        self.userfaultfd_with(openings, device_group())
    }

    /// The same where the device is open to `group`.
    fn userfaultfd_with(self, openings: &Openings, group: Option<String>) -> String {
        // First: filters in containers answer with any error.
        if let Some(container) = self.container {
            return container.userfaultfd(openings.device.err().unwrap_or(Errno::PERM));
        }
        if openings.user_mode_only == Err(Errno::NOSYS) {
            return "run a kernel built with CONFIG_USERFAULTFD=y (Linux 5.11 or later)".into();
        }
        let sysctl = "sysctl -w vm.unprivileged_userfaultfd=1";
        let closed = matches!(openings.device, Err(Errno::ACCESS | Errno::PERM));
        match group {
            Some(group) if closed => format!(
                "{} (/dev/userfaultfd is open to that group), and log in again",
                self.as_root(&format!("usermod -aG {group} $USER"))
            ),
            _ if closed => format!(
                "{} (until the next boot; to keep it: echo 'KERNEL==\"userfaultfd\", \
                 MODE=\"0666\"' | {})",
                self.as_root("chmod 0666 /dev/userfaultfd"),
                self.as_root("tee /etc/udev/rules.d/99-userfaultfd.rules"),
            ),
            _ => format!(
                "{} (until the next boot; to keep it: echo vm.unprivileged_userfaultfd=1 | {})",
                self.as_root(sysctl),
                self.as_root("tee /etc/sysctl.d/99-pagetide.conf"),
            ),
        }
    }
}

impl Situation {
    /// How to let this process lock more memory.
    pub fn memory_lock_limit(self) -> String {
        if let Some(container) = self.container {
            return container.memory_lock_limit().into();
        }
        format!(
            "{} (this shell and what it starts; to keep it: a line '* - memlock unlimited' in \
             /etc/security/limits.d/pagetide.conf)",
            self.as_root("prlimit --pid $$ --memlock=unlimited")
        )
    }
}

/// The group that `/dev/userfaultfd` is open to, where that is not root's: a udev rule may say so.
fn device_group() -> Option<String> {
    let meta = std::fs::metadata("/dev/userfaultfd").ok()?;
    let is_open = meta.permissions().mode() & 0o060 == 0o060 && meta.gid() != 0;
    let groups = is_open.then(|| std::fs::read_to_string("/etc/group").ok())??;
    group_name(&groups, meta.gid())
}

/// The name of group `gid`, from the text of `/etc/group`.
fn group_name(groups: &str, gid: u32) -> Option<String> {
    let number = gid.to_string();
    let mut lines = groups.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)? == number).then(|| name.to_owned())
    })
}

/// Why `run` cannot start, when no userfaultfd that serves kernel-mode faults can be opened.
pub fn no_userfaultfd(openings: &Openings) -> String {
    let said = |result: Result<(), Errno>| {
        result
            .err()
            .map_or("works".to_owned(), |errno| errno.to_string())
    };
    format!(
        "page faults cannot be served: userfaultfd cannot be opened for faults taken in the \
         kernel (/dev/userfaultfd: {}; \
         system call: {})\n  fix: {}\n  see: pagetide doctor",
        said(openings.device),
        said(openings.syscall),
        Situation::detect().userfaultfd(openings)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: Openings = Openings {
        device: Err(Errno::ACCESS),
        syscall: Err(Errno::PERM),
        user_mode_only: Ok(()),
    };

    #[test]
    fn groups_are_found_by_their_number() {
        let groups = "root:x:0:\npagetide:x:987:alice\nshort\n";
        assert_eq!(group_name(groups, 987).as_deref(), Some("pagetide"));
        assert_eq!(group_name(groups, 98), None);
    }

    #[test]
    fn the_fix_is_a_line_for_the_situation() {
        let user = Situation {
            root: false,
            container: None,
        };
        assert!(
            user.userfaultfd_with(&REFUSED, None)
                .starts_with("sudo chmod 0666 /dev/userfaultfd")
        );
        let member = user.userfaultfd_with(&REFUSED, Some("pagetide".into()));
        assert!(member.starts_with("sudo usermod -aG pagetide"), "{member}");
        let no_device = Openings {
            device: Err(Errno::NOENT),
            ..REFUSED
        };
        assert!(
            user.userfaultfd_with(&no_device, None)
                .starts_with("sudo sysctl -w vm.unprivileged_userfaultfd=1")
        );
        let root = Situation {
            root: true,
            container: None,
        };
        assert!(
            root.userfaultfd_with(&no_device, None)
                .starts_with("sysctl -w")
        );
        let container = Situation {
            root: true,
            container: Some(Container::Docker),
        };
        let line = container.userfaultfd_with(&REFUSED, None);
        assert!(line.starts_with("docker run --device"), "{line}");
        let none = Openings {
            user_mode_only: Err(Errno::NOSYS),
            ..REFUSED
        };
        assert!(
            user.userfaultfd_with(&none, None)
                .contains("CONFIG_USERFAULTFD")
        );
    }
}
