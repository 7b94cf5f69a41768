//! Words of messages.

/// So many of what `one` names: "1 task", "2 tasks".
pub fn counted(count: u64, one: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        let said = [0, 1, 2].map(|count| counted(count, "page"));
        assert_eq!(said, ["0 pages", "1 page", "2 pages"]);
    }
}
