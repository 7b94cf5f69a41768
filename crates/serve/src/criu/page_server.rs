//! Pages from another machine: `criu page-server --lazy-pages`, or `criu dump --lazy-pages`, which
//! keeps the memory of what it dumped until it has been fetched.
//!
//! One connection, on which one request is under way at a time: the server answers in order, and
//! takes one connection in its life. Once it fails, every page that is still there is lost.
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pagetide_kernel::{PAGE_SIZE, PageNumber};

use crate::source::SourceError;

/// Asks for pages.
const GET: u32 = 7;
/// Pages follow: `PS_IOV_ADD_F`, with the flag that says they are present.
const PAGES: u32 = 6 | 4 << 16;
/// Nothing more is wanted.
const CLOSE: u32 = 0x1023;
/// Pages of a request: more may not fit into a pipe of the server's.
const REQUEST_PAGES: u64 = 16;
/// How long the server may take for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a page server counts pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// With 32 bits: up to CRIU 4.1.
    Bits32,
    /// With 64 bits: from CRIU 4.2 on.
    Bits64,
}

/// See the module's text.
#[derive(Debug)]
pub struct PageServer {
    counting: Counting,
    /// Or why it is of no use any more.
    connection: Mutex<Result<TcpStream, String>>,
    /// The same, for who does not wait until the answer under way is there.
    other: TcpStream,
    given_up: AtomicBool,
    patience: Duration,
}

/// An answer, all of which is to be there at a moment: a server that sends a byte now and then is
/// not waited for longer.
struct Until<'s> {
    stream: &'s mut TcpStream,
    until: Instant,
}

impl io::Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(into)
    }
}

/// A request, or the beginning of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    command: u32,
    pages: u64,
    address: u64,
    task: u64,
}

impl Header {
    fn bytes(self, counting: Counting) -> Vec<u8> {
        let pages = match counting {
            Counting::Bits32 => (self.pages as u32).to_le_bytes().to_vec(),
            // An integer of 64 bits begins at a multiple of eight bytes.
            Counting::Bits64 => [[0; 4].to_vec(), self.pages.to_le_bytes().to_vec()].concat(),
        };
        let rest = [self.address, self.task].map(u64::to_le_bytes).concat();
        [self.command.to_le_bytes().to_vec(), pages, rest].concat()
    }

    fn read(from: &mut impl io::Read, counting: Counting) -> io::Result<Header> {
        let mut bytes = [0; 32];
        let pages_at = match counting {
            Counting::Bits32 => 4,
            Counting::Bits64 => 8,
        };
        let pages_len = pages_at;
        let bytes = &mut bytes[..pages_at + pages_len + 16];
        from.read_exact(bytes)?;
        let number = |at: usize, len: usize| {
            let mut number = [0; 8];
            number[..len].copy_from_slice(&bytes[at..at + len]);
            u64::from_le_bytes(number)
        };
        Ok(Header {
            command: number(0, 4) as u32,
            pages: number(pages_at, pages_len),
            address: number(pages_at + pages_len, 8),
            task: number(pages_at + pages_len + 8, 8),
        })
    }
}

impl PageServer {
    /// Connects to it.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn connect(address: &(String, u16), counting: Counting) -> Result<PageServer, SourceError> {
        let (host, port) = (&address.0, address.1);
        let told = |error: io::Error| {
            SourceError(format!(
                "the page server at {host}:{port} cannot be reached: {error}"
            ))
        };
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for place in (host.as_str(), port).to_socket_addrs().map_err(told)? {
            match TcpStream::connect_timeout(&place, PATIENCE) {
                Ok(connection) => return PageServer::over(connection, counting).map_err(told),
                Err(error) => last = error,
            }
        }
        Err(told(last))
    }

    fn over(connection: TcpStream, counting: Counting) -> io::Result<PageServer> {
        connection.set_nodelay(true)?;
        connection.set_write_timeout(Some(PATIENCE))?;
        Ok(PageServer {
            counting,
            other: connection.try_clone()?,
            given_up: AtomicBool::new(false),
            patience: PATIENCE,
            connection: Mutex::new(Ok(connection)),
        })
    }

    fn connection(&self) -> MutexGuard<'_, Result<TcpStream, String>> {
        self.connection
            .lock()
            .unwrap_or_else(|held| held.into_inner())
    }

    /// Fetches pages of task `pid` from `first` on into `into`: at most `most` of them, at least
    /// one; how many came.
    ///
    /// # Errors
    /// The server does not answer, or not with pages; from then on none can be had.
    pub fn get(
        &self,
        pid: u32,
        first: PageNumber,
        most: u64,
        into: &mut Vec<u8>,
    ) -> Result<u64, SourceError> {
        let mut connection = self.connection();
        let stream = match &mut *connection {
            Ok(stream) => stream,
            Err(why) => return Err(SourceError(why.clone())),
        };
        let request = Header {
            command: GET,
            pages: most.min(REQUEST_PAGES),
            address: first.address() as u64,
            task: pid.into(),
        };
        let until = Instant::now() + self.patience;
        let result = exchange(Until { stream, until }, request, self.counting, into);
        result.map_err(|error| {
            let why = match error.kind() {
                _ if self.given_up.load(Relaxed) => "this command ends".to_owned(),
                io::ErrorKind::WouldBlock => {
                    let patience = self.patience;
                    format!("the page server has not answered within {patience:?}")
                }
                io::ErrorKind::UnexpectedEof => {
                    "the page server has closed the connection".to_owned()
                }
                _ => format!("the page server failed: {error}"),
            };
            *connection = Err(why.clone());
            SourceError(why)
        })
    }

    /// Nothing more is asked of it: whoever waits for an answer is told so at once.
    pub fn give_up(&self) {
        self.given_up.store(true, Relaxed);
        let _ = self.other.shutdown(Shutdown::Both);
    }

    /// Tells it that nothing more is wanted, and waits for its answer.
    pub fn close(&self) {
        let mut connection = self.connection();
        if let Ok(stream) = &mut *connection {
            let close = Header {
                command: CLOSE,
                pages: 0,
                address: 0,
                task: 0,
            };
            // Whether it hears or not, all that was wanted is here.
            let told = stream.write_all(&close.bytes(self.counting));
            let until = Instant::now() + self.patience;
            let _ = told.and_then(|()| Until { stream, until }.read_exact(&mut [0; 4]));
        }
        *connection = Err("the page server was told that nothing more is wanted".to_owned());
    }
}

fn exchange(
    mut answers: Until<'_>,
    request: Header,
    counting: Counting,
    into: &mut Vec<u8>,
) -> io::Result<u64> {
    answers.stream.write_all(&request.bytes(counting))?;
    let answer = Header::read(&mut answers, counting)?;
    let is_answer = answer.command == PAGES
        && (1..=request.pages).contains(&answer.pages)
        && (answer.address, answer.task) == (request.address, request.task);
    if !is_answer {
        let text = format!(
            "it was asked for {} pages at {:#x} of task {} and answered with command {:#x}, {} \
             pages at {:#x} of task {}; another version of CRIU counts pages in another way \
             (--page-count-bits)",
            request.pages,
            request.address,
            request.task,
            answer.command,
            answer.pages,
            answer.address,
            answer.task
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    into.resize(answer.pages as usize * PAGE_SIZE, 0);
    answers.read_exact(into)?;
    Ok(answer.pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A server that answers each request with what `answer` makes of it.
    fn served(
        counting: Counting,
        answer: impl Fn(Header) -> Option<(Header, Vec<u8>)> + Send + 'static,
    ) -> PageServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while let Ok(request) = Header::read(&mut stream, counting) {
                match answer(request) {
                    Some((header, bytes)) => {
                        stream.write_all(&header.bytes(counting)).unwrap();
                        stream.write_all(&bytes).unwrap();
                    }
                    None => return,
                }
            }
        });
        PageServer::connect(&("127.0.0.1".to_owned(), port), counting).unwrap()
    }

    #[test]
    fn headers_are_those_of_the_two_versions() {
        let header = Header {
            command: GET,
            pages: 3,
            address: 0x7f00_0000_1000,
            task: 700,
        };
        let narrow = header.bytes(Counting::Bits32);
        assert_eq!(
            (narrow.len(), &narrow[..8]),
            (24, &[7, 0, 0, 0, 3, 0, 0, 0][..])
        );
        let wide = header.bytes(Counting::Bits64);
        assert_eq!(
            (wide.len(), &wide[4..16]),
            (32, &[0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0][..])
        );
        for (bytes, counting) in [(narrow, Counting::Bits32), (wide, Counting::Bits64)] {
            assert_eq!(Header::read(&mut &bytes[..], counting).unwrap(), header);
        }
    }

    #[test]
    fn fewer_pages_may_come_than_were_asked_for() {
        for counting in [Counting::Bits32, Counting::Bits64] {
            let server = served(counting, |request| {
                assert_eq!((request.command, request.pages, request.task), (GET, 16, 7));
                let pages = 5;
                let answer = Header {
                    command: PAGES,
                    pages,
                    ..request
                };
                Some((answer, vec![9; pages as usize * PAGE_SIZE]))
            });
            let mut into = Vec::new();
            assert_eq!(server.get(7, PageNumber(0x10), 300, &mut into).unwrap(), 5);
            assert_eq!(into, [9; 5 * PAGE_SIZE]);
        }
    }

    #[test]
    fn a_server_that_sends_a_byte_now_and_then_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = (
            "127.0.0.1".to_owned(),
            listener.local_addr().unwrap().port(),
        );
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let request = Header::read(&mut stream, Counting::Bits64).unwrap();
            let header = Header {
                command: PAGES,
                ..request
            };
            stream.write_all(&header.bytes(Counting::Bits64)).unwrap();
            while stream.write_all(&[1]).is_ok() {
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let mut server = PageServer::connect(&address, Counting::Bits64).unwrap();
        server.patience = Duration::from_millis(200);
        let failed = server.get(7, PageNumber(1), 1, &mut Vec::new());
        let why = failed.unwrap_err().to_string();
        assert!(why.contains("not answered within 200ms"), "{why}");
    }

    #[test]
    fn a_server_that_failed_is_not_asked_again() {
        let zero = |request| {
            Some((
                Header {
                    command: PAGES,
                    pages: 0,
                    ..request
                },
                Vec::new(),
            ))
        };
        let more = |request: Header| {
            let pages = request.pages + 1;
            Some((
                Header {
                    command: PAGES,
                    pages,
                    ..request
                },
                Vec::new(),
            ))
        };
        let other = |request| {
            Some((
                Header {
                    command: PAGES,
                    task: 8,
                    ..request
                },
                Vec::new(),
            ))
        };
        let gone = |_| None;
        let server = |case| match case {
            0 => served(Counting::Bits32, zero),
            1 => served(Counting::Bits32, more),
            2 => served(Counting::Bits32, other),
            _ => served(Counting::Bits32, gone),
        };
        for case in 0..4 {
            let server = server(case);
            let mut into = Vec::new();
            let why = server.get(7, PageNumber(9), 1, &mut into).unwrap_err().0;
            let expected = if case == 3 {
                "closed the connection"
            } else {
                "--page-count-bits"
            };
            assert!(why.contains(expected), "{case}: {why}");
            assert_eq!(
                server.get(7, PageNumber(9), 1, &mut into).unwrap_err().0,
                why
            );
        }
    }

    #[test]
    fn the_end_is_told_and_answered() {
        let (tell, told) = std::sync::mpsc::channel();
        let server = served(Counting::Bits64, move |request| {
            tell.send(request.command).unwrap();
            None
        });
        server.close();
        assert_eq!(told.recv().unwrap(), CLOSE);
        assert!(server.get(7, PageNumber(9), 1, &mut Vec::new()).is_err());
    }
}
