//! The lock service that decides about the lock of a guarded folder: an engine in the process of
//! the guard, a server, or the server of a mount.

use crate::cli::argument_types::absolute;
use crate::cli::connect::credential_options;
use crate::cli::connect::credential_options::ServerKeyArgs;
use crate::cli::connect::mount_client::{ControlFileClient, LockClient};
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::client::http_transport::ServerAccess;
use crate::client::{Remote, Terms};
use crate::engine::{LockName, Rules};
use crate::guard::folder::folder_record::{FolderRecord, another_engine};
use crate::service::local::Local;
use crate::service::{BackendStatus as _, LockService, Retry};
use crate::storage::atomic_file::{Durable, replace};
use kernel::mountinfo::{self, MountPoint};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

/// The file in this machine's part of the state directory of a folder with the server that the
/// folder's record named when the guard last started.
const KNOWN_SERVER: &str = "server";

/// The options that say where the lock of a folder lives.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct DeciderArgs {
    /// The server that decides about the lock [default: that of --profile, or as 'guard init'
    /// recorded]
    #[arg(long, value_name = "URL", conflicts_with_all = ["dir", "state"])]
    server: Option<String>,
    /// A mount on a server, which decides about the lock
    #[arg(long, value_name = "MOUNT", conflicts_with = "state")]
    dir: Option<PathBuf>,
    /// Where the locks of a folder of 'guard init --alone' are kept [default: beside the stages]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    pub(super) key: ServerKeyArgs,
}

/// The lock service that decides about a folder's lock.
pub(in crate::cli) enum Decider {
    /// An engine in this process.
    Alone(Arc<Local>),
    /// A server.
    Server(Arc<Remote>),
}

fn unavailable(error: &impl ToString) -> CliError {
    CliError::unavailable(error.to_string())
}

impl DeciderArgs {
    /// Returns the server that the command line names.
    fn named(&self) -> CliResult<Option<String>> {
        let server = self.dir.as_deref().map(server_of_mount).transpose()?;
        self.key.named_server(server.as_ref().or(self.server.as_ref()))
    }

    /// Returns the server of a folder: the one that the options or its record name, and for a
    /// folder without a record the configured one.
    #[cfg(target_os = "linux")]
    pub(super) fn server_of(&self, record: Option<&FolderRecord>) -> CliResult<Option<String>> {
        match (self.named()?, record.map(|record| &record.server)) {
            (Some(named), _) => Ok(Some(named)),
            (None, Some(None)) => Ok(None),
            (None, Some(Some(url))) => Ok(Some(self.key.access_of_folder(url)?.url)),
            (None, None) => Ok(self.key.default_server()?.map(|server| server.value)),
        }
    }

    /// Opens the lock service that the options, or else the folder's record, name.
    pub(in crate::cli) fn open(
        &self,
        record: &FolderRecord,
        host_dir: &Path,
        terms: Terms,
    ) -> CliResult<Decider> {
        let named = self.named()?;
        check_known_server(record, host_dir, named.is_some())?;
        let server = named.clone().or_else(|| record.server.clone());
        match (server, &self.state) {
            (Some(url), None) => {
                let access = match named {
                    Some(url) => self.key.access(&url)?,
                    None => self.key.access_of_folder(&url)?,
                };
                credential_options::connect(&access, Some(terms)).map(Decider::Server)
            }
            (None, state) => {
                let own = || Ok(host_dir.join("engine"));
                let state = state.as_deref().map_or_else(own, absolute)?;
                let local = Local::open(&state, Rules::default());
                local.map(|local| Decider::Alone(Arc::new(local))).map_err(|error| {
                    unavailable(&format!(
                        "{error}; if the folder is a copy of a guarded one, give it an id of \
                             its own by 'latchfs guard init --new-id'"
                    ))
                })
            }
            (Some(url), Some(_)) => Err(CliError::usage(format!(
                "the lock of this folder is kept by {url}, as its record says; leave --state out, \
                 and name a place for stages by --stage DIR"
            ))),
        }
    }
}

/// Compares the server that the record of a folder names with the one that it named when this
/// machine's guard last started, and remembers it. Anyone who can write to the folder can name
/// another one, which would grant the lock to two machines. `is_named`: the user names the server.
fn check_known_server(record: &FolderRecord, host_dir: &Path, is_named: bool) -> CliResult {
    let path = host_dir.join(KNOWN_SERVER);
    let named_by = |record: &FolderRecord| {
        let server = record.server.as_deref().unwrap_or("this machine");
        format!("{server}, engine {}", record.engine)
    };
    let recorded = named_by(record);
    let known = match fs::read_to_string(&path) {
        Ok(known) => Some(known.trim_end().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(CliError::system(&path.display().to_string(), &error)),
    };
    match known {
        Some(known) if known == recorded => Ok(()),
        Some(known) if !is_named => Err(CliError::usage(format!(
            "the record of this folder named {known} when its guard last started here, and names \
             {recorded} now; if you have moved the lock there, name the server once by --server URL"
        ))),
        _ => replace(&path, &[recorded.as_bytes(), b"\n"], Durable::Yes)
            .map(drop)
            .map_err(|error| CliError::system(&path.display().to_string(), &error)),
    }
}

impl Decider {
    /// Returns the lock service that decides.
    pub(in crate::cli) fn locks(&self) -> Arc<dyn LockService> {
        let service: Arc<dyn LockService> = match self {
            Self::Alone(local) => Arc::clone(local) as _,
            Self::Server(remote) => Arc::clone(remote) as _,
        };
        service
    }

    /// Closes the engine, or the connection.
    pub(in crate::cli) fn close(&self) -> CliResult {
        match self {
            Self::Alone(local) => local.close().map_err(|error| unavailable(&error)),
            Self::Server(remote) => {
                remote.close();
                Ok(())
            }
        }
    }
}

/// Returns the URL of the server whose locks a mount shows.
pub(in crate::cli) fn server_of_mount(dir: &Path) -> CliResult<String> {
    let shown = dir.display();
    let real = mountinfo::resolve(dir)
        .map_err(|error| CliError::system(&format!("{shown} can't be looked up"), &error))?;
    if !matches!(mountinfo::at(&real), Ok(Some(mount)) if MountPoint::is_latchfs(&mount)) {
        return Err(CliError::unavailable(format!(
            "no latchfs is mounted at {shown}; mount one by 'latchfs mount {shown} --server URL'"
        )));
    }
    let about = ControlFileClient::of(real).about()?;
    about["server"]["url"].as_str().map(str::to_owned).ok_or_else(|| {
        CliError::usage(format!(
            "the mount {shown} has its own engine, and a guard can use a mount on a server only; \
             run 'latchfs serve --data DIR', mount by --server URL, and name that server here too, \
             or guard the folder by 'guard init --alone'"
        ))
    })
}

/// Returns the id of the engine of a server or cluster.
pub(super) fn engine_of(access: &ServerAccess) -> CliResult<u64> {
    let remote = credential_options::connect(access, None)?;
    // The request names the lock of a folder: the credentials may permit no other locks.
    let name = format!("folder-{:032}", 0);
    let name = LockName::parse(&name).map_err(|error| unavailable(&error))?;
    // With several servers, the first request chooses the engine.
    let engine = match remote.view(&name, Retry::Never).wait() {
        Ok(_) => match remote.engine_id() {
            0 => Err(CliError::unavailable(without_an_id())),
            engine => Ok(engine),
        },
        Err(why) => Err(unavailable(&why)),
    };
    remote.close();
    engine
}

/// Refuses a server that is not the one that decides about the folder's lock.
pub(in crate::cli) fn check_engine(
    record: &FolderRecord,
    locks: &Arc<dyn LockService>,
) -> CliResult {
    if record.server.is_none() {
        return Ok(());
    }
    let (recorded, found) = (record.engine_id(), locks.engine_id());
    if found == 0 {
        return Err(CliError::Said(Exit::Unavailable, without_an_id()));
    }
    if recorded == found {
        return Ok(());
    }
    Err(CliError::Said(Exit::Unavailable, another_engine(recorded, found)))
}

/// Returns the sentence for a server whose engine has no id. Two such servers would be taken for
/// one another, and each would grant the folder's lock.
fn without_an_id() -> String {
    "this server can't be told from another one, since only a server with a data directory has an \
     engine with an id, and each of two servers could grant the folder's lock; start it by \
     'latchfs serve --data DIR'"
        .to_owned()
}
