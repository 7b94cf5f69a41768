//! `pagetide man`: rendered from the declaration of the command line.
use std::path::Path;

use clap::CommandFactory as _;

use crate::args::Arguments;
use crate::exit::{Exit, Failure};

/// Prints the man page: the command and each of its subcommands in full. With a directory, writes
/// it there, and a page of its own for each subcommand.
pub fn man(directory: Option<&Path>) -> Result<u8, Failure> {
    match directory {
        None => super::print(&man_page()?)?,
        Some(directory) => write_pages(directory).map_err(|error| {
            let text = format!("{}: {error}", directory.display());
            Failure::new(Exit::Failed, text)
        })?,
    }
    Ok(Exit::Ok.code())
}

fn write_pages(directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let page = man_page().map_err(|failure| std::io::Error::other(failure.message))?;
    clap_mangen::generate_to(Arguments::command(), directory)?;
    std::fs::write(directory.join("pagetide.1"), page)
}

fn man_page() -> Result<String, Failure> {
    let failure = |error: std::io::Error| {
        Failure::new(
            Exit::Failed,
            format!("the man page cannot be made ({error})"),
        )
    };
    let mut command = Arguments::command();
    command.build();
    let mut page = Vec::new();
    let main = clap_mangen::Man::new(command.clone());
    main.render_title(&mut page).map_err(failure)?;
    main.render_name_section(&mut page).map_err(failure)?;
    main.render_synopsis_section(&mut page).map_err(failure)?;
    main.render_description_section(&mut page)
        .map_err(failure)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let name = sub.get_name().to_uppercase();
        page.extend_from_slice(format!(".SH \"PAGETIDE {name}\"\n").as_bytes());
        let about = sub
            .get_long_about()
            .or(sub.get_about())
            .map(ToString::to_string)
            .unwrap_or_default();
        page.extend_from_slice(format!("{}\n", escape(&about)).as_bytes());
        let mut options = Vec::new();
        clap_mangen::Man::new(sub.clone())
            .render_options_section(&mut options)
            .map_err(failure)?;
        // A heading of its own would end the section.
        let options = String::from_utf8_lossy(&options).replacen(".SH OPTIONS\n", "", 1);
        page.extend_from_slice(options.as_bytes());
    }
    page.extend_from_slice(b".SH \"EXIT STATUS\"\n.nf\n");
    for line in Exit::table().lines().skip(1) {
        page.extend_from_slice(format!("{}\n", escape(line)).as_bytes());
    }
    page.extend_from_slice(b".fi\n");
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// Text in roff: a line that begins with a dot or quote would be a request.
fn escape(text: &str) -> String {
    let text = text
        .replace('\\', "\\\\")
        .replace('-', "\\-")
        .replace("\n\n", "\n.PP\n");
    text.lines()
        .map(|line| {
            if line.starts_with(['\'']) {
                format!("\\&{line}")
            } else {
                line.to_owned()
            }
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_man_page_has_every_command_and_exit_code() {
        let page = man_page().unwrap();
        for command in ["RUN", "PS", "STAT", "LIMIT", "TOP", "DOCTOR"] {
            assert!(page.contains(&format!("PAGETIDE {command}")), "{command}");
        }
        assert!(page.contains("EXIT STATUS") && page.contains("data were lost"));
        assert!(page.contains("resident"));
    }
}
