//! What clients have sent and nobody wants, closed where nobody waits.
//!
//! Closing a descriptor may take as long as who sent it likes: a TCP socket with `SO_LINGER` waits
//! for its peer, a file of a user's own file system for that user. So it is done by threads that do
//! nothing else.
use std::sync::{Mutex, MutexGuard};

/// Threads at a time: so many descriptors that take long to close hold up the others.
const THREADS_MAX: usize = 32;
/// The stack of one.
const STACK_BYTES: usize = 64 << 10;

/// See the module's text.
struct Bin {
    /// What is to be dropped.
    waiting: Vec<Box<dyn Send>>,
    threads: usize,
}

static BIN: Mutex<Bin> = Mutex::new(Bin {
    waiting: Vec::new(),
    threads: 0,
});

fn bin() -> MutexGuard<'static, Bin> {
    BIN.lock().unwrap_or_else(|held| held.into_inner())
}

/// Has another thread drop `what`. Where there is no thread to be had, the next call does it.
pub(crate) fn discard(what: impl Send + 'static) {
    let mut bin = bin();
    bin.waiting.push(Box::new(what));
    if bin.threads == THREADS_MAX {
        return;
    }
    let thread = std::thread::Builder::new()
        .name("pagetide-discard".into())
        .stack_size(STACK_BYTES)
        .spawn(empty);
    bin.threads += usize::from(thread.is_ok());
}

/// A thread: drops what there is.
fn empty() {
    let mut bin = bin();
    while let Some(next) = bin.waiting.pop() {
        drop(bin);
        drop(next);
        bin = self::bin();
    }
    bin.threads -= 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Takes until somebody lets it.
    struct Slow(Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    struct Told(Sender<()>);

    impl Drop for Told {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
        }
    }

    #[test]
    fn what_takes_long_to_drop_holds_up_nobody() {
        let (end, slow) = channel();
        let (tell, told) = channel();
        discard(Slow(slow));
        discard(Told(tell));
        told.recv().unwrap();
        drop(end);
    }
}
