//! Programs that gain privilege when executed: the dynamic linker ignores `LD_PRELOAD` for them.
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::process::{Gid, Uid, getgid, getuid};

const SETUID: u32 = 0o4000;
const SETGID_AND_GROUP_EXECUTE: u32 = 0o2010;

/// Why executing `program` would gain privilege for this user and drop the agent, or `None`.
pub fn refusal(program: &Path) -> Option<String> {
    let meta = std::fs::metadata(program).ok()?;
    let capabilities = has_capabilities(program);
    gain(&meta, capabilities, getuid(), getgid())
}

fn gain(meta: &Metadata, capabilities: bool, uid: Uid, gid: Gid) -> Option<String> {
    let mode = meta.permissions().mode();
    let (what, how) = if mode & SETUID != 0 && meta.uid() != uid.as_raw() {
        (
            format!("setuid to user {}", meta.uid()),
            "run pagetide as that user",
        )
    } else if mode & SETGID_AND_GROUP_EXECUTE == SETGID_AND_GROUP_EXECUTE
        && meta.gid() != gid.as_raw()
    {
        (
            format!("setgid to group {}", meta.gid()),
            "run pagetide as that group",
        )
    } else if capabilities && !uid.is_root() {
        ("given file capabilities".to_owned(), "run pagetide as root")
    } else {
        return None;
    };
    Some(format!(
        "it is {what}, and the dynamic linker loads no agent into programs that gain privilege; \
         {how}, or run a copy of the \
         program without the privilege"
    ))
}

fn has_capabilities(program: &Path) -> bool {
    let mut value = [0u8; 64];
    rustix::fs::getxattr(program, "security.capability", &mut value).is_ok_and(|len| len > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privilege_that_changes_the_user_is_named_and_one_s_own_is_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let set = |mode| {
            std::fs::set_permissions(
                file.path(),
                std::os::unix::fs::PermissionsExt::from_mode(mode),
            )
            .unwrap()
        };
        let meta = || file.path().metadata().unwrap();
        let (own_uid, own_gid) = (Uid::from_raw(meta().uid()), Gid::from_raw(meta().gid()));
        let (other_uid, other_gid) = (
            Uid::from_raw(own_uid.as_raw() + 1),
            Gid::from_raw(own_gid.as_raw() + 1),
        );
        set(0o755);
        assert_eq!(gain(&meta(), false, other_uid, other_gid), None);
        assert!(
            gain(&meta(), true, Uid::from_raw(1000), own_gid)
                .unwrap()
                .contains("capabilities")
        );
        assert_eq!(gain(&meta(), true, Uid::ROOT, own_gid), None);
        set(0o4755);
        assert!(
            gain(&meta(), false, other_uid, own_gid)
                .unwrap()
                .contains("setuid")
        );
        assert_eq!(gain(&meta(), false, own_uid, own_gid), None);
        set(0o2755);
        assert!(
            gain(&meta(), false, own_uid, other_gid)
                .unwrap()
                .contains("setgid")
        );
        assert_eq!(gain(&meta(), false, own_uid, own_gid), None);
    }
}
