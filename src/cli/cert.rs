//! The `cert` command: a small certificate authority for the machines of a home.

use super::exit::{CliError, CliResult};
use super::output;
use crate::server::http::ca::{self, CertFiles, CertSubject};
use clap::Subcommand;
use std::path::PathBuf;

/// The arguments of `latchfs cert`.
#[derive(Debug, clap::Args)]
pub(super) struct CertArgs {
    /// Where keys and certificates are kept
    #[arg(long, value_name = "DIR", default_value = "latchfs-certs", global = true)]
    dir: PathBuf,
    #[command(subcommand)]
    what: CertCommand,
}

#[derive(Debug, Subcommand)]
enum CertCommand {
    /// The authority itself: copy ca.pem to every machine, and keep ca.key private
    Ca,
    /// A server, under the names and addresses by which clients find it
    Server {
        /// Names and addresses, such as box.local 192.168.1.2
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
    /// A node, under the names and addresses by which other nodes find it
    Peer {
        /// Names and addresses, such as box1.local 192.168.1.2; the files have the first
        #[arg(value_name = "NAME", required = true, value_parser = file_name)]
        names: Vec<String>,
    },
    /// A secret for all nodes of a cluster, instead of a certificate for each: peers.pem
    Secret,
    /// A client: it may act as NAME, and as NAME:USER
    Client {
        /// The client, such as laptop1
        #[arg(value_name = "NAME", value_parser = file_name)]
        name: String,
    },
}

/// Parses the name of a peer or client, which also becomes the name of its files.
fn file_name(text: &str) -> Result<String, &'static str> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match text {
        "" | "ca" | "server" | "peers" => {
            Err("this name is taken by the authority, the server or the secret of all nodes")
        }
        _ if text.starts_with(['.', '-']) || !text.chars().all(is_fine) || text.len() > 64 => {
            Err("a name has letters, digits, '-', '_' and '.', 64 at most")
        }
        _ => Ok(text.to_owned()),
    }
}

pub(super) fn run(args: &CertArgs) -> CliResult {
    let whose = match &args.what {
        CertCommand::Ca => CertSubject::Authority,
        CertCommand::Server { names } => CertSubject::Server(names.clone()),
        CertCommand::Peer { names } => CertSubject::Peer(names.clone()),
        CertCommand::Secret => {
            let file = ca::make_secret(&args.dir);
            let file = file.map_err(|error| CliError::unavailable(error.to_string()))?;
            return output::line(&format!("made {}", file.display()));
        }
        CertCommand::Client { name } => CertSubject::Client(name.clone()),
    };
    let CertFiles { cert, key } =
        ca::make(&args.dir, &whose).map_err(|error| CliError::unavailable(error.to_string()))?;
    output::line(&format!("made {} and {}", cert.display(), key.display()))
}
