//! The exact line that mends a missing privilege, by situation: root or not, in a container or not.
use pagetide_kernel::probe::Openings;
use pagetide_kernel::procfs::status::in_first_user_namespace;
use rustix::io::Errno;
use rustix::process::geteuid;

/// What decides how a problem is mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Situation {
    /// Root in its own user namespace.
    pub root: bool,
    /// In a container, where sysctls and devices are the host's to give.
    pub container: bool,
}

impl Situation {
    /// This process's situation. What a container is called does not matter, only whether sysctls
    /// can be set from inside: not where `/proc/sys` is mounted read-only, nor in a user namespace.
    pub fn detect() -> Situation {
        use rustix::fs::{StatVfsMountFlags, statvfs};
        let read_only =
            statvfs("/proc/sys").is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY));
        Situation {
            root: geteuid().is_root(),
            container: read_only || in_first_user_namespace() == Some(false),
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
        if openings.user_mode_only == Err(Errno::NOSYS) {
            return "run a kernel built with CONFIG_USERFAULTFD=y (Linux 5.11 or later)".into();
        }
        let sysctl = "sysctl -w vm.unprivileged_userfaultfd=1";
        if self.container {
            return format!(
                "on the host: {}; and start the container with --security-opt seccomp=unconfined \
                 (or a profile that allows \
                 userfaultfd), or with --device /dev/userfaultfd after chmod 0666 \
                 /dev/userfaultfd on the host",
                self.as_root(sysctl)
            );
        }
        match openings.device {
            Err(Errno::ACCESS | Errno::PERM) => format!(
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
        if self.container {
            return "start the container with --ulimit memlock=-1 or --cap-add IPC_LOCK".into();
        }
        format!(
            "{} (this shell and what it starts; to keep it: a line '* - memlock unlimited' in \
             /etc/security/limits.d/pagetide.conf)",
            self.as_root("prlimit --pid $$ --memlock=unlimited")
        )
    }
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
    fn the_fix_is_a_line_for_the_situation() {
        let user = Situation {
            root: false,
            container: false,
        };
        assert!(
            user.userfaultfd(&REFUSED)
                .starts_with("sudo chmod 0666 /dev/userfaultfd")
        );
        let no_device = Openings {
            device: Err(Errno::NOENT),
            ..REFUSED
        };
        assert!(
            user.userfaultfd(&no_device)
                .starts_with("sudo sysctl -w vm.unprivileged_userfaultfd=1")
        );
        let root = Situation {
            root: true,
            container: false,
        };
        assert!(root.userfaultfd(&no_device).starts_with("sysctl -w"));
        let container = Situation {
            root: true,
            container: true,
        };
        assert!(container.userfaultfd(&REFUSED).contains("on the host"));
        let none = Openings {
            user_mode_only: Err(Errno::NOSYS),
            ..REFUSED
        };
        assert!(user.userfaultfd(&none).contains("CONFIG_USERFAULTFD"));
    }
}
