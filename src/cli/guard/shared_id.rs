//! The id of a folder at its server. It is made once, under the name by which all machines call the
//! folder: its id in Syncthing, or that of `--name`. The server keeps it as the handover of the
//! lock `folders/NAME`: the first machine that gets the lock makes the id, and the others read it.

use super::carry;
use crate::cli::connect::credential_options::{ServerKeyArgs, ask_first};
use crate::cli::exit::{CliError, CliResult};
use crate::engine::ClientId;
use crate::guard::folder::folder_record::is_folder_id;
use crate::time::Span;
#[cfg(target_os = "linux")]
use barrier::handover::Handover;
use serde_json::Value;
use std::path::Path;

/// The locks under whose names a server keeps the ids of folders.
const LOCKS: &str = "folders/";
/// The terms of the lock while a machine reads the id, and sets it if there is none. A machine that
/// dies meanwhile delays the others for ten seconds.
const TERMS: &str = "ttl=10s&grace=0s&remember=true&wait=20s";
/// How long the server may take to answer, the wait for the lock included.
const ANSWER_PATIENCE: Span = Span::from_secs(30);
/// The id that Syncthing has given to its first folder on each machine: it names no folder.
const SYNCTHING_DEFAULT: &str = "default";

/// A folder at the server that has its id.
pub(super) struct FolderAtServer<'a> {
    /// The name by which all machines call the folder.
    pub(super) name: String,
    pub(super) url: &'a str,
    pub(super) key: &'a ServerKeyArgs,
    /// The name of this machine.
    pub(super) client: ClientId,
}

/// The id that a server has for a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SharedId {
    pub(super) id: String,
    /// The machine that has made the id.
    pub(super) maker: String,
}

/// Returns the name of a folder: that in the Syncthing of this user, whose configuration may be in
/// `syncthing`, or `name`.
pub(super) fn shared_name(
    folder: &Path,
    syncthing: Option<&Path>,
    name: Option<&str>,
) -> CliResult<Option<String>> {
    let settings = carry::folder_settings(syncthing, folder);
    let of_tool = settings.map(|it| it.id).filter(|id| id != SYNCTHING_DEFAULT);
    match (of_tool, name) {
        (Some(id), Some(name)) if id != name => Err(CliError::usage(format!(
            "the folder is '{id}' in Syncthing, which names it on all machines; leave --name out"
        ))),
        (id, name) => Ok(id.or_else(|| name.map(str::to_owned))),
    }
}

impl FolderAtServer<'_> {
    /// Returns the id that the server has for the folder. That is `own` if it has none yet, or if
    /// `replaces` says so.
    pub(super) fn claim(&self, own: &str, replaces: bool) -> CliResult<SharedId> {
        let lock = format!("/locks/{LOCKS}{}", carry::escaped(&self.name).replace('/', "%2F"));
        let known = id_in(&self.request("GET", &format!("{lock}/previous"))?);
        if let Some(known) = known.filter(|_| !replaces) {
            return Ok(known);
        }
        let query = format!("{lock}?client={}", carry::escaped(self.client.as_str()));
        let granted = self.request("POST", &format!("{query}&{TERMS}"))?;
        let release = format!("{query}&token={}", granted["token"]);
        if let Some(known) = id_in(&granted).filter(|_| !replaces) {
            return self.request("DELETE", &release).map(|_| known);
        }
        self.request("DELETE", &format!("{release}&handover={own}&counter=1"))?;
        Ok(SharedId { id: own.to_owned(), maker: self.client.to_string() })
    }

    /// Whether the folder with this id has a marker, so that its record was made or is lost.
    #[cfg(target_os = "linux")]
    pub(super) fn is_marked(&self, id: &str) -> CliResult<bool> {
        let answer = self.request("GET", &format!("/locks/folder-{id}/previous"))?;
        let handover = answer["previous"]["handover"].as_str();
        let marks = |text| Handover::parse(text).map_or(true, |handover| handover.marker.is_some());
        Ok(handover.is_some_and(marks))
    }

    fn request(&self, method: &str, path: &str) -> CliResult<Value> {
        let answer = ask_first(self.url, self.key, method, path, ANSWER_PATIENCE);
        answer.map(|(_, answer)| answer).map_err(|error| match error {
            CliError::Said(exit, why) => {
                let next = "the server keeps the id of this folder as the lock";
                CliError::Said(exit, format!("{why}; {next} {LOCKS}{}", self.name))
            }
            error => error,
        })
    }
}

/// Returns the id in an answer about the lock. A handover that is no id counts as none.
fn id_in(answer: &Value) -> Option<SharedId> {
    let text = |key: &str| answer["previous"][key].as_str().map(str::to_owned);
    let id = text("handover").filter(|id| is_folder_id(id))?;
    Some(SharedId { id, maker: text("client").unwrap_or_default() })
}
