//! What a benchmark prints: one JSON object on a line for programs, or text with tables for people.
use std::fmt;
use std::io::{Error, IsTerminal, Result, Write};
use std::path::Path;

use serde::Serialize;

/// Prints `results` as a line of JSON if asked to, or else the text made of them.
pub fn print<T: Serialize>(json: bool, results: &T, text: impl Fn(&T) -> String) -> Result<()> {
    let text = match json {
        true => serde_json::to_string(results)? + "\n",
        false => text(results),
    };
    std::io::stdout().write_all(text.as_bytes())
}

/// Writes a picture, or says which file cannot be written.
pub fn save(path: &Path, picture: &str) -> Result<()> {
    std::fs::write(path, picture)
        .map_err(|error| Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Says how far a benchmark is, where somebody looks: what is said next takes its place.
pub fn progress(what: &str) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        // Who cannot be told is measured for nevertheless.
        let _ = write!(stderr, "\r\x1b[K{what}");
    }
}

/// Says what stays on the screen.
pub fn say(what: &str) {
    progress("");
    eprintln!("{what}");
}

/// A table: the first column to the left, the others to the right, each as wide as it needs to be.
#[derive(Debug)]
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// With these heads and no row yet.
    pub fn new(heads: &[&str]) -> Table {
        Table(vec![heads.iter().map(|head| (*head).to_owned()).collect()])
    }

    /// Adds a row, which may be shorter than the heads.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.0.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.0[0].len()).map(width).collect();
        for row in &self.0 {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                line += &match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A number with so many decimals, or a dash where there is none.
pub fn cell(value: impl Into<Option<f64>>, decimals: usize) -> String {
    let value: Option<f64> = value.into();
    value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"))
}

/// Bytes in mebibytes.
pub fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stay_apart_and_what_was_not_measured_is_a_dash() {
        let mut table = Table::new(&["", "mean", "p99"]);
        table.row(["fork".to_owned(), cell(123_456_789.0, 1), cell(None, 0)]);
        table.row(["pagetide full".to_owned(), cell(Some(0.25), 2)]);
        let lines = [
            "                      mean  p99\n",
            "fork           123456789.0    -\n",
            "pagetide full         0.25\n",
        ];
        assert_eq!(table.to_string(), lines.concat());
    }
}
