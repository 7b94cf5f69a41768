//! A plain text table: a heading, columns as wide as their widest cell, numbers to the right.
use std::fmt;

/// Rows of text under a heading.
#[derive(Debug, Clone)]
pub struct Table {
    rows: Vec<Vec<String>>,
    left_aligned: &'static [usize],
}

impl Table {
    /// A table with these headings; the columns in `left_aligned` are text.
    pub fn new(headings: &[&str], left_aligned: &'static [usize]) -> Table {
        Table {
            rows: vec![headings.iter().map(|h| (*h).to_owned()).collect()],
            left_aligned,
        }
    }

    /// Adds a row of as many cells as there are headings.
    pub fn push(&mut self, cells: Vec<String>) {
        assert_eq!(
            cells.len(),
            self.rows[0].len(),
            "a row has a cell for each heading"
        );
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                if self.left_aligned.contains(&column) {
                    line.push_str(&format!("{gap}{cell:<width$}"));
                } else {
                    line.push_str(&format!("{gap}{cell:>width$}"));
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["PID", "COMMAND", "N"], &[1]);
        table.push(vec!["7".into(), "sort".into(), "1000".into()]);
        table.push(vec!["12345".into(), "x".into(), "2".into()]);
        assert_eq!(
            table.to_string(),
            "  PID  COMMAND     N\n    7  sort     1000\n12345  x           2\n"
        );
    }
}
