//! `pilotctl help CODE`: the page of a problem's code.

use model::problem::ProblemCode;

/// The page if the arguments are `help CODE`, for example `help PIL0103`. Other forms of help are clap's.
pub(crate) fn page(args: &[String]) -> Option<String> {
    match args {
        [_, command, code] if command == "help" => ProblemCode::parse(code).map(|code| format!("{}\n", code.page())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn codes_have_pages_and_commands_do_not() {
        let args = |last: &str| ["pilotctl", "help", last].map(str::to_owned);
        assert!(page(&args("pil0103")).is_some_and(|page| page.starts_with("PIL0103: Unknown kind")));
        assert_eq!(page(&args("analyze")), None);
    }
}
