//! A restore: CRIU connects, and says for each task its process ID and sends its userfaultfd; then
//! that the restore is finished. Nothing is answered.
//!
//! Tasks are served from the moment on at which they are heard of: some touch memory before the
//! restore is finished. What nobody waits for comes after that, as before it not all memory is
//! registered. The session ends when every task has all its pages or is gone. An earlier end would
//! leave zeros.
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use pagetide_kernel::uffd::{Uffd, feature};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::tree::Tree;
use crate::client::{Handed, refuses};
use crate::crew::{Crew, Setup};
use crate::memory::Memory;
use crate::moment::Moment;
use crate::record::Recorder;
use crate::said::counted;
use crate::source::SourceError;
use crate::status::Status;

/// Says that the restore is finished, in the place of a process ID: "FTSR".
const FINISHED: i32 = 0x5253_5446;

/// Why a session failed. What was to be served until then was.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The connection.
    #[error("the connection of CRIU's restore failed: {0}")]
    Connection(#[from] io::Error),
    /// It ended too early.
    #[error("CRIU closed the connection before the restore was finished")]
    Closed,
    /// What was said is not what CRIU says.
    #[error("CRIU's restore said what was not expected: {0}")]
    Said(String),
    /// Where pages come from.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// Pages could not be had.
    #[error("lost: {}, and whoever touches one gets SIGBUS", counted(*.0, "page"))]
    Lost(u64),
    /// Tasks could not be served to the end.
    #[error("not served to the end: {}; what is missing is zeros", counted(*.0, "task"))]
    Broken(u64),
    /// The working set could not be saved.
    #[error("--record: the working set is not saved: {0}")]
    Recorded(io::Error),
    /// The end came first.
    #[error("ended before the restore was finished")]
    Told,
}

/// See the module's text.
pub struct Session {
    listener: UnixListener,
    tree: Arc<Tree>,
    crew: Arc<Crew>,
    begins: Arc<Moment>,
}

/// What was said.
enum Word {
    Task(i32),
    Finished,
    /// The end has come.
    Ended,
}

impl Session {
    /// A session for the restore of `tree`, which is the source of `setup` as well.
    ///
    /// # Errors
    /// No descriptor is to be had.
    pub fn new(
        listener: UnixListener,
        tree: Arc<Tree>,
        setup: Setup,
        ending: Arc<Moment>,
    ) -> io::Result<Session> {
        let begins = Arc::new(Moment::new()?);
        Ok(Session {
            listener,
            tree,
            crew: Arc::new(Crew::new(setup, ending, Some(Arc::clone(&begins)))),
            begins,
        })
    }

    /// What it does, for those who ask.
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.crew.status)
    }

    /// What is recorded, if anything is.
    pub fn recorder(&self) -> Option<Arc<Recorder>> {
        self.crew.recorder.clone()
    }

    /// Serves one restore until all its tasks have all their pages, or are gone.
    ///
    /// # Errors
    /// [`Failed`]. Where the restore failed, its tasks were served until they were gone.
    pub fn run(self) -> Result<(), Failed> {
        let heard = self.hear();
        match &heard {
            Ok(()) => self.begins.come(),
            // Of a restore that failed CRIU ends the tasks. Their memory may not be registered.
            Err(error) => (self.crew.say)(&format!(
                "{error}; its tasks are served what they touch, until they are gone"
            )),
        }
        let left = self
            .crew
            .wait_for_all(self.crew.patience, &|| self.tree.give_up());
        self.tree.disconnect();
        if let Some(recorder) = &self.crew.recorder {
            recorder.save().map_err(Failed::Recorded)?;
        }
        heard?;
        let status = &self.crew.status;
        match (
            status.broken() + left as u64,
            status.report().total.lost_pages,
        ) {
            (0, 0) => Ok(()),
            (0, lost) => Err(Failed::Lost(lost)),
            (broken, _) => Err(Failed::Broken(broken)),
        }
    }

    /// Hears of all tasks, and has each served at once.
    fn hear(&self) -> Result<(), Failed> {
        if !self.is_readable(&self.listener)? {
            return Err(Failed::Told);
        }
        let (connection, _) = self.listener.accept()?;
        self.tree.connect()?;
        loop {
            match self.word(&connection)? {
                Word::Finished => {
                    (self.crew.say)("the restore is finished");
                    return Ok(());
                }
                Word::Ended => return Err(Failed::Told),
                // One that had ended, and was not waited for yet: it has no memory.
                Word::Task(..0) => {}
                Word::Task(pid) => {
                    let descriptor = self.descriptor(&connection, pid)?;
                    self.greet(pid as u32, descriptor)?;
                }
            }
        }
    }

    /// Waits until there is something to read; false when the end has come.
    fn is_readable(&self, from: &impl std::os::fd::AsFd) -> io::Result<bool> {
        loop {
            let mut fds = [
                PollFd::new(from, PollFlags::IN),
                PollFd::new(&*self.crew.ending, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                result => result?,
            };
            if self.crew.ending.has_come() {
                return Ok(false);
            }
            if !fds[0].revents().is_empty() {
                return Ok(true);
            }
        }
    }

    /// The next word: the process ID of a task, or the last one.
    fn word(&self, connection: &UnixStream) -> Result<Word, Failed> {
        let mut bytes = [0; 4];
        let mut there = 0;
        while there < bytes.len() {
            if !self.is_readable(connection)? {
                return Ok(Word::Ended);
            }
            let (count, descriptor) = receive(connection, &mut bytes[there..])?;
            if count == 0 {
                return Err(Failed::Closed);
            }
            if descriptor.is_some() {
                let text = "a descriptor where a process ID was expected";
                return Err(Failed::Said(text.to_owned()));
            }
            there += count;
        }
        match i32::from_le_bytes(bytes) {
            FINISHED => Ok(Word::Finished),
            pid => Ok(Word::Task(pid)),
        }
    }

    /// The userfaultfd of task `pid`, which follows its process ID with one byte.
    fn descriptor(&self, connection: &UnixStream, pid: i32) -> Result<OwnedFd, Failed> {
        if !self.is_readable(connection)? {
            return Err(Failed::Told);
        }
        match receive(connection, &mut [0])? {
            (0, _) => Err(Failed::Closed),
            (_, Some(descriptor)) => Ok(descriptor),
            (_, None) => {
                let text =
                    format!("no descriptor where the userfaultfd of task {pid} was expected");
                Err(Failed::Said(text))
            }
        }
    }

    /// Has a task served.
    fn greet(&self, pid: u32, descriptor: OwnedFd) -> Result<(), Failed> {
        let areas = self.tree.areas(pid).ok_or_else(|| {
            Failed::Said(format!(
                "task {pid}, which the images do not know to have memory"
            ))
        })?;
        let told = |what: String| Failed::Said(format!("of task {pid}: {what}"));
        let uffd = Uffd::adopt(descriptor).map_err(|error| told(error.to_string()))?;
        if let Some(why) = refuses(uffd.features(), feature::SIGBUS) {
            return Err(told(why));
        }
        self.crew.start(Handed {
            uffd,
            memory: Memory::new(areas.to_vec()),
            owner: None,
            pid: Some(pid),
            holding: None,
        });
        Ok(())
    }
}

/// Receives what there is, at most as many bytes as there is room for, and a descriptor with it.
fn receive(connection: &UnixStream, into: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(into)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let count = match recvmsg(connection, &mut slices, &mut control, flags) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result?.bytes,
        };
        let mut descriptor = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
                descriptor = descriptors.next();
            }
        }
        return Ok((count, descriptor));
    }
}
