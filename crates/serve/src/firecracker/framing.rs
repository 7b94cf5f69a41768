//! Where a JSON array ends, told byte by byte as it arrives: a message can come in any number of
//! parts, and is parsed once.

/// What has been seen of the array.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Not all of it.
    Part,
    /// All of it.
    All,
    /// It is none: what there is instead.
    Other(String),
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Framing {
    depth: u32,
    in_string: bool,
    escaped: bool,
    over: bool,
}

impl Framing {
    /// Looks at the next bytes.
    pub fn look(&mut self, bytes: &[u8]) -> Seen {
        for byte in bytes {
            if self.over || self.depth == 0 {
                match byte {
                    // Some senders end what they say with a NUL.
                    b' ' | b'\t' | b'\r' | b'\n' | 0 => {}
                    b'[' if !self.over => self.depth = 1,
                    other => return Seen::Other(unexpected(*other, self.over)),
                }
            } else if self.in_string {
                self.in_string = self.escaped || *byte != b'"';
                self.escaped = !self.escaped && *byte == b'\\';
            } else {
                match byte {
                    b'"' => self.in_string = true,
                    b'[' | b'{' => self.depth += 1,
                    b']' | b'}' => self.depth -= 1,
                    _ => {}
                }
                self.over = self.depth == 0;
            }
        }
        if self.over { Seen::All } else { Seen::Part }
    }
}

fn unexpected(byte: u8, over: bool) -> String {
    let place = if over {
        "after its end"
    } else {
        "at its beginning"
    };
    format!("there is '{}' {place}", byte.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_end_is_found_wherever_the_parts_end(
            keys in prop::collection::vec(".*", 0..5),
            cut in any::<prop::sample::Index>(),
        ) {
            let values = keys.iter().map(|key| serde_json::json!({ key: [key, 7] }));
            let text = serde_json::Value::Array(values.collect()).to_string();
            let cut = cut.index(text.len());
            let mut framing = Framing::default();
            prop_assert_eq!(framing.look(&text.as_bytes()[..cut]), Seen::Part);
            prop_assert_eq!(framing.look(&text.as_bytes()[cut..]), Seen::All);
        }
    }

    #[test]
    fn what_is_no_array_is_told_at_once() {
        let seen = |text: &str| Framing::default().look(text.as_bytes());
        assert_eq!(seen("\n [1] \n\0"), Seen::All);
        assert_eq!(
            seen("{"),
            Seen::Other("there is '{' at its beginning".into())
        );
        assert_eq!(
            seen("[]]"),
            Seen::Other("there is ']' after its end".into())
        );
    }
}
