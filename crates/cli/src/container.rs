//! In which kind of container this process runs, and what lets it page there.
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::Path;

use pagetide_kernel::procfs::status::in_first_user_namespace;
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;

/// The kinds that are told apart: devices are given to each in another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// A pod's.
    Kubernetes,
    /// Started by podman.
    Podman,
    /// Started by Docker.
    Docker,
    /// Another, or one that does not say.
    Other,
}

impl Container {
    /// The one around this process, where sysctls and devices cannot be set from inside:
    /// `/proc/sys` is mounted read-only, or this is a user namespace.
    pub fn detect() -> Option<Container> {
        let read_only =
            statvfs("/proc/sys").is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY));
        let keeps_closed = read_only || in_first_user_namespace() == Some(false);
        keeps_closed.then(|| Container::marked().unwrap_or(Container::Other))
    }

    /// The one whose marks are here. That says less: a privileged container has all that its host
    /// has, and a machine may have been made from a container's image.
    pub fn marked() -> Option<Container> {
        kind_at(Path::new("/"), |name| std::env::var_os(name))
    }

    /// How to let a process in it open `/dev/userfaultfd`, which opening answered with `device`.
    /// The default filters of Docker and podman forbid the system call whatever the sysctl says.
    pub fn userfaultfd(self, device: Errno) -> String {
        let closed = device == Errno::ACCESS;
        let give = match self {
            Container::Kubernetes => {
                return format!(
                    "give the container the node's /dev/userfaultfd by a device plugin, \
                     resources.limits squat.ai/userfaultfd: 1{}; see \
                     docs/systemd-and-containers.md",
                    match closed {
                        true =>
                            ", and securityContext.supplementalGroups with the device's group, \
                             or run it as root",
                        false => "",
                    }
                );
            }
            Container::Podman => "podman run --device /dev/userfaultfd",
            Container::Docker => "docker run --device /dev/userfaultfd",
            Container::Other => {
                "start the container with the host's device, such as --device /dev/userfaultfd"
            }
        };
        let groups = match (self, closed) {
            (_, false) => "",
            (Container::Podman, true) => {
                " --group-add keep-groups, as a member of the device's group on the host"
            }
            (_, true) => " --group-add GID, the device's group on the host",
        };
        let open = match closed {
            true => {
                "; that group: sudo chgrp GROUP /dev/userfaultfd && sudo chmod 0660 \
                     /dev/userfaultfd"
            }
            false => "",
        };
        let older = match device {
            Errno::NOENT => {
                " (before Linux 6.1 there is none: a seccomp profile that allows userfaultfd, \
                 and on the host sysctl -w vm.unprivileged_userfaultfd=1)"
            }
            _ => "",
        };
        format!("{give}{groups}{open}{older}")
    }

    /// How to let a process in it lock more memory.
    pub fn memory_lock_limit(self) -> &'static str {
        match self {
            Container::Kubernetes => "securityContext.capabilities.add: [IPC_LOCK]",
            _ => "start the container with --ulimit memlock=-1 or --cap-add IPC_LOCK",
        }
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Container::Kubernetes => "Kubernetes",
            Container::Podman => "podman",
            Container::Docker => "Docker",
            Container::Other => "of an unknown kind",
        })
    }
}

/// By what the makers of containers leave in them, in the file system at `root` and the
/// environment. A pod may have what the engine below it leaves as well, so that comes first.
fn kind_at(root: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Option<Container> {
    let at = |path: &str| root.join(path);
    if variable("KUBERNETES_SERVICE_HOST").is_some() || at("var/run/secrets/kubernetes.io").exists()
    {
        return Some(Container::Kubernetes);
    }
    let groups = fs::read_to_string(at("proc/self/cgroup")).unwrap_or_default();
    if groups.contains("/kubepods") {
        return Some(Container::Kubernetes);
    }
    let named = variable("container").unwrap_or_default();
    if at("run/.containerenv").exists() || named == "podman" || groups.contains("/libpod-") {
        return Some(Container::Podman);
    }
    if at(".dockerenv").exists()
        || named == "docker"
        || groups.contains("/docker/")
        || groups.contains("/docker-")
    {
        return Some(Container::Docker);
    }
    // systemd-nspawn, LXC and others, by systemd's convention.
    (!named.is_empty() || at("run/systemd/container").exists()).then_some(Container::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With `file` there, holding `text`.
    fn with_file(file: &str, text: &str) -> Option<Container> {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        kind_at(root.path(), |_| None)
    }

    #[test]
    fn a_container_is_known_by_what_its_maker_left() {
        for (file, text, kind) in [
            (".dockerenv", "", Some(Container::Docker)),
            (
                "run/.containerenv",
                "engine=\"podman-4.3.1\"",
                Some(Container::Podman),
            ),
            (
                "var/run/secrets/kubernetes.io/serviceaccount/token",
                "x",
                Some(Container::Kubernetes),
            ),
            (
                "proc/self/cgroup",
                "12:memory:/docker/0123456789ab\n",
                Some(Container::Docker),
            ),
            (
                "proc/self/cgroup",
                "0::/machine.slice/libpod-01.scope\n",
                Some(Container::Podman),
            ),
            (
                "proc/self/cgroup",
                "0::/kubepods.slice/kubepods-pod1\n",
                Some(Container::Kubernetes),
            ),
            (
                "proc/self/cgroup",
                "0::/system.slice/docker.service\n",
                None,
            ),
            ("proc/self/cgroup", "0::/user.slice\n", None),
            ("run/systemd/container", "lxc\n", Some(Container::Other)),
        ] {
            assert_eq!(with_file(file, text), kind, "{file}: {text}");
        }
        let empty = tempfile::tempdir().unwrap();
        let named = |name: &'static str, value: &'static str| {
            kind_at(empty.path(), move |asked| {
                (asked == name).then(|| value.into())
            })
        };
        assert_eq!(
            named("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
            Some(Container::Kubernetes)
        );
        assert_eq!(named("container", "podman"), Some(Container::Podman));
        assert_eq!(named("container", "systemd-nspawn"), Some(Container::Other));
        assert_eq!(named("HOME", "/"), None);
    }

    #[test]
    fn each_kind_has_its_own_line() {
        use Container::*;
        for (kind, error, parts) in [
            (
                Docker,
                Errno::NOENT,
                &["docker run --device /dev/userfaultfd", "6.1"][..],
            ),
            (
                Docker,
                Errno::PERM,
                &["docker run --device /dev/userfaultfd"],
            ),
            (
                Docker,
                Errno::ACCESS,
                &["--device /dev/userfaultfd --group-add GID", "chgrp"],
            ),
            (
                Podman,
                Errno::ACCESS,
                &["podman run", "--group-add keep-groups"],
            ),
            (
                Kubernetes,
                Errno::NOENT,
                &["resources.limits squat.ai/userfaultfd: 1"],
            ),
            (Kubernetes, Errno::ACCESS, &["supplementalGroups"]),
            (Other, Errno::NOENT, &["--device /dev/userfaultfd"]),
        ] {
            let line = kind.userfaultfd(error);
            for part in parts {
                assert!(line.contains(part), "{kind}, {error}: {line}");
            }
        }
        assert!(Kubernetes.memory_lock_limit().contains("IPC_LOCK"));
    }
}
