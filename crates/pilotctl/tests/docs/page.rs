//! Command blocks of a page: fenced blocks marked `console`. Lines that begin with `$ ` are commands, the others are the
//! output that a reader sees; `…` means any text.
//!
//! `console not-run: REASON` marks a block that is not run. A comment `<!-- run first: COMMANDS -->` has commands that the
//! reader need not type, such as the start of a registry that the reader has already.

/// The command blocks of a page, in order.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Page {
    pub(crate) setup: Vec<String>,
    pub(crate) commands: Vec<PageCommand>,
    /// Blocks that are not run: the first line of each, and the reason.
    pub(crate) not_run: Vec<(String, String)>,
    /// Lines of command blocks that are not marked, which nothing verifies.
    pub(crate) unmarked: Vec<String>,
}

/// One command and the output that the page shows.
#[derive(Debug, PartialEq)]
pub(crate) struct PageCommand {
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) output: Vec<String>,
}

const SETUP: &str = "<!-- run first:";
/// Programs whose use in an unmarked block is an oversight.
const PROGRAMS: [&str; 10] =
    ["pilotctl", "pilot-discovery", "pilot-agent", "kubectl", "helm", "curl", "cargo", "make", "istioctl", "consul"];

impl Page {
    pub(crate) fn parse(text: &str) -> Page {
        let mut page = Page::default();
        let mut lines = text.lines().enumerate();
        let mut is_after_blank = true;
        while let Some((number, line)) = lines.next() {
            let trimmed = line.trim_start();
            if let Some(first) = trimmed.strip_prefix(SETUP) {
                let mut setup = first.to_owned();
                while !setup.contains("-->") {
                    let Some((_, more)) = lines.next() else { break };
                    setup.push('\n');
                    setup.push_str(more);
                }
                page.setup.push(setup.split("-->").next().unwrap_or_default().trim().to_owned());
            } else if let Some(info) = trimmed.strip_prefix("```") {
                let inside: Vec<(usize, &str)> =
                    lines.by_ref().take_while(|(_, line)| line.trim_start() != "```").collect();
                page.add_block(info.trim(), number + 2, &inside);
            } else if line.starts_with("    ") && is_after_blank && is_command(trimmed) {
                page.unmarked.push(line.to_owned());
            }
            is_after_blank = line.trim().is_empty();
        }
        page
    }

    fn add_block(&mut self, info: &str, first: usize, lines: &[(usize, &str)]) {
        let shown = lines.first().map_or("", |(_, line)| line).to_owned();
        match info.split_once(' ') {
            Some(("console", rest)) if rest.starts_with("not-run:") => {
                self.not_run.push((shown, rest.trim_start_matches("not-run:").trim().to_owned()));
            }
            _ if info == "console" => self.commands.extend(commands(first, lines)),
            _ => self
                .unmarked
                .extend(lines.iter().map(|(_, line)| line).filter(|l| is_command(l)).map(|l| (*l).to_owned())),
        }
    }
}

fn is_command(line: &str) -> bool {
    let words = line.trim_start().trim_start_matches("$ ");
    words.split_whitespace().next().is_some_and(|word| PROGRAMS.contains(&word))
}

fn commands(first: usize, lines: &[(usize, &str)]) -> Vec<PageCommand> {
    let mut found: Vec<PageCommand> = Vec::new();
    let mut rest = lines.iter().map(|(_, line)| *line).enumerate();
    while let Some((offset, line)) = rest.next() {
        match line.strip_prefix("$ ") {
            Some(command) => {
                let mut text = command.to_owned();
                while text.ends_with('\\') || is_open(&text) {
                    let Some((_, more)) = rest.next() else { break };
                    text.push('\n');
                    text.push_str(more);
                }
                found.push(PageCommand { line: first + offset, text, output: Vec::new() });
            }
            None => {
                if let Some(command) = found.last_mut() {
                    command.output.push(line.to_owned());
                }
            }
        }
    }
    found
}

/// Whether a here-document or a quoted text has not ended yet.
fn is_open(text: &str) -> bool {
    let Some((_, after)) = text.split_once("<<") else { return text.matches('\'').count() % 2 == 1 };
    let word = after.split_whitespace().next().unwrap_or_default().trim_matches(['\'', '"', '-']);
    !text.lines().skip(1).any(|line| line.trim() == word)
}

/// The first line of `expected` that is not in `output`, in order.
pub(crate) fn missing<'a>(expected: &'a [String], output: &str) -> Option<&'a str> {
    let mut lines = output.lines();
    let is_there = |wanted: &&String| lines.any(|line| is_like(line.trim_end(), wanted.trim_end()));
    let mut wanted = expected.iter().filter(|line| !matches!(line.trim(), "" | "…"));
    let mut is_there = is_there;
    wanted.find(|line| !is_there(line)).map(String::as_str)
}

/// Whether a line is as the page shows it; `…` means any text.
fn is_like(line: &str, shown: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let mut ends_open = !shown.contains('…') && rest.is_empty();
    for part in parts {
        if part.is_empty() {
            ends_open = true;
            continue;
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        ends_open = rest.is_empty();
    }
    ends_open
}

#[test]
fn commands_continue_over_here_documents_and_backslashes() {
    let text = "text\n```console\n$ cat > a <<EOF\nx: 1\nEOF\n$ one \\\n  two\nout …\n```\n";
    let page = Page::parse(text);
    let texts: Vec<&str> = page.commands.iter().map(|command| command.text.as_str()).collect();
    assert_eq!(texts, ["cat > a <<EOF\nx: 1\nEOF", "one \\\n  two"]);
    assert_eq!((page.commands[0].line, page.commands[1].output.join("|")), (3, "out …".to_owned()));
}

#[test]
fn blocks_without_a_mark_are_found() {
    let text = "<!-- run first: a &\nb -->\n```console not-run: needs a cluster\n$ helm x\n```\n\n    pilotctl ps\n\n```yaml\na: 1\n```\n";
    let page = Page::parse(text);
    assert_eq!(page.setup, ["a &\nb"]);
    assert_eq!(page.not_run, [("$ helm x".to_owned(), "needs a cluster".to_owned())]);
    assert_eq!(page.unmarked, ["    pilotctl ps"]);
}

#[test]
fn shown_output_is_compared_line_by_line() {
    let expected = ["a … c", "…", "end"].map(str::to_owned);
    assert_eq!(missing(&expected, "noise\na b c\nmore\nend\n"), None);
    assert_eq!(missing(&expected, "a b d\nend\n"), Some("a … c"));
    assert_eq!(missing(&expected, "end\na b c\n"), Some("end"));
}
