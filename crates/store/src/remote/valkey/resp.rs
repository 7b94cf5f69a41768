//! The protocol (RESP, version 2): requests are arrays of byte strings, answers are one of five
//! forms.

use crate::remote::engine::push_number;
use crate::remote::link::Link;
use crate::{ErrorKind, StoreError};

/// An answer, in full. Reads of pages do not go through this: they allocate nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Simple(String),
    Error(String),
    Number(i64),
    Bytes(Option<Vec<u8>>),
    List(Vec<Answer>),
}

/// Arrays inside arrays deeper than this are refused.
const DEPTH_MAX: u32 = 8;
/// The longest single string of a full answer.
const BYTES_MAX: usize = 16 << 20;
/// The longest array: owners of one prefix are two elements each.
const LIST_MAX: usize = 1 << 20;

/// Begins a request of `count` words.
pub(crate) fn begin(out: &mut Vec<u8>, count: usize) {
    out.push(b'*');
    number(out, count);
}

/// Adds a word to a request.
pub(crate) fn word(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'$');
    number(out, bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Adds a whole request.
pub(crate) fn request(out: &mut Vec<u8>, words: &[&[u8]]) {
    begin(out, words.len());
    words.iter().for_each(|bytes| word(out, bytes));
}

/// A number and the end of the line.
fn number(out: &mut Vec<u8>, value: usize) {
    push_number(out, value);
    out.extend_from_slice(b"\r\n");
}

/// What a short answer is, before its body.
pub(crate) enum Head {
    Simple,
    /// With the error's words as an error of ours.
    Error(StoreError),
    Number(i64),
    /// So many bytes follow, and the end of a line.
    Bytes(usize),
    Nothing,
}

/// Reads the head of an answer. Allocates only for errors.
pub(crate) fn head(link: &mut Link) -> Result<Head, StoreError> {
    let line = link.line()?;
    let (form, rest) = line.split_first().ok_or_else(|| unexpected(b""))?;
    let count = |rest: &[u8]| {
        let text = std::str::from_utf8(rest).ok();
        text.and_then(|text| text.parse::<i64>().ok())
            .ok_or_else(|| unexpected(line))
    };
    Ok(match form {
        b'+' => Head::Simple,
        b'-' => Head::Error(refusal(rest)),
        b':' => Head::Number(count(rest)?),
        b'$' => match count(rest)? {
            -1 => Head::Nothing,
            len => Head::Bytes(usize::try_from(len).map_err(|_| unexpected(line))?),
        },
        _ => return Err(unexpected(line)),
    })
}

/// Reads the body of a [`Head::Bytes`], at most 32 KiB, in place.
pub(crate) fn body(link: &mut Link, len: usize) -> Result<&mut [u8], StoreError> {
    let bytes = link.take(len + 2)?;
    let (body, end) = bytes.split_at_mut(len);
    if end != b"\r\n" {
        return Err(unexpected(end));
    }
    Ok(body)
}

/// Reads a whole answer.
pub(crate) fn answer(link: &mut Link) -> Result<Answer, StoreError> {
    answer_at(link, 0)
}

fn answer_at(link: &mut Link, depth: u32) -> Result<Answer, StoreError> {
    // Simple strings and errors are wanted as text here, so the line is looked at before `head`
    // would drop it.
    let line = link.line()?.to_vec();
    let (form, rest) = line.split_first().ok_or_else(|| unexpected(b""))?;
    let text = || String::from_utf8_lossy(rest).into_owned();
    let number = || text().parse::<i64>().map_err(|_| unexpected(&line));
    Ok(match form {
        b'+' => Answer::Simple(text()),
        b'-' => Answer::Error(text()),
        b':' => Answer::Number(number()?),
        b'$' => match usize::try_from(number()?) {
            Err(_) => Answer::Bytes(None),
            Ok(len) if len > BYTES_MAX => return Err(unexpected(&line)),
            Ok(len) => {
                let mut bytes = Vec::with_capacity(len + 2);
                while bytes.len() < len + 2 {
                    let part = (len + 2 - bytes.len()).min(16 << 10);
                    bytes.extend_from_slice(link.take(part)?);
                }
                bytes.truncate(len);
                Answer::Bytes(Some(bytes))
            }
        },
        b'*' => match usize::try_from(number()?) {
            Err(_) => Answer::List(vec![]),
            Ok(len) if depth == DEPTH_MAX || len > LIST_MAX => return Err(unexpected(&line)),
            Ok(len) => (0..len)
                .map(|_| answer_at(link, depth + 1))
                .collect::<Result<_, _>>()
                .map(Answer::List)?,
        },
        _ => return Err(unexpected(&line)),
    })
}

impl Answer {
    /// The text of a string of any kind.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Answer::Simple(text) => Some(text.clone()),
            Answer::Bytes(Some(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }

    /// An error answer as an error.
    pub(crate) fn good(self) -> Result<Answer, StoreError> {
        match self {
            Answer::Error(words) => Err(refusal(words.as_bytes())),
            good => Ok(good),
        }
    }
}

/// The server's error as one of ours, by its first word.
#[cold]
pub(crate) fn refusal(words: &[u8]) -> StoreError {
    let words = String::from_utf8_lossy(words);
    let first = words.split(' ').next().unwrap_or_default();
    let kind = match first {
        "OOM" => ErrorKind::Full,
        "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "READONLY" | "BUSY" | "MOVED"
        | "ASK" | "NOREPLICAS" => ErrorKind::Temporary,
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => ErrorKind::Config,
        _ => ErrorKind::Io,
    };
    StoreError::new(kind, format!("the server says `{}`", words.trim()))
}

#[cold]
fn unexpected(line: &[u8]) -> StoreError {
    let shown: String = String::from_utf8_lossy(line).chars().take(60).collect();
    StoreError::new(
        ErrorKind::Io,
        format!(
            "it answers like no Valkey or Redis server: `{}` (memcached is named memcached://HOST)",
            shown.escape_debug()
        ),
    )
}

/// The error for an answer that is one, but not to what was asked.
#[cold]
pub(crate) fn out_of_step() -> StoreError {
    StoreError::new(
        ErrorKind::Io,
        "an answer of another form than the request's",
    )
}
