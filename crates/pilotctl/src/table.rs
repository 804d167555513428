//! Tables for the terminal: columns as wide as their longest cell.

/// A table with a head line. Every row has as many cells as the head.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let lines: Vec<&Vec<String>> = std::iter::once(&head).chain(rows).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |line: &&Vec<String>| {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("   ").trim_end())
    };
    lines.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn columns_are_as_wide_as_characters() {
        let rows = [["café", "1"], ["naïve-ünïcode", "2"], ["plain", "3"]].map(|row| row.map(str::to_owned).to_vec());
        let expected = "NAME            N\ncafé            1\nnaïve-ünïcode   2\nplain           3\n";
        assert_eq!(table(&["NAME", "N"], &rows), expected);
    }
}
