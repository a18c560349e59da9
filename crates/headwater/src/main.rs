//! The `headwater` program.

fn main() -> std::process::ExitCode {
    headwater::cli::run()
}
