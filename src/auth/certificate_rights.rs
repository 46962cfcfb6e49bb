//! The file of the rights of client certificates: the clients and lock prefixes of each, by name.

use super::grant::{ClientPattern, Credential, Grant};
use super::token_file::{NAME_BYTES_MAX, PREFIXES_MAX, TokensError};
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Maximum number of certificates in the file.
const CERTIFICATES_MAX: usize = 10_000;

/// Maximum length of the file in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The write permissions of all users but the owner of the file.
const OTHERS_WRITE: u32 = 0o022;

/// The grant of each certificate that the file names.
pub(super) struct CertificateRights(HashMap<String, Arc<Grant>>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RightsFile {
    #[serde(default)]
    certificate: Vec<RightsEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RightsEntry {
    name: String,
    clients: Option<Vec<String>>,
    locks: Vec<String>,
    #[serde(default)]
    steal: bool,
    #[serde(default)]
    cluster: bool,
}

impl CertificateRights {
    /// Reads the file at `path`, which no user but its owner may be able to change.
    pub(super) fn read(path: &Path) -> Result<Self, TokensError> {
        let file = File::open(path).map_err(TokensError::Read)?;
        let mode = file.metadata().map_err(TokensError::Read)?.mode() & 0o777;
        if mode & OTHERS_WRITE != 0 {
            return Err(TokensError::Writable(mode));
        }
        let mut text = String::new();
        let whole = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
        if whole.map_err(TokensError::Read)? as u64 > FILE_BYTES_MAX {
            return Err(TokensError::Wrong(format!("it is longer than {FILE_BYTES_MAX} bytes")));
        }
        Self::parse(&text).map_err(TokensError::Wrong)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let whole: RightsFile = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        if whole.certificate.len() > CERTIFICATES_MAX {
            return Err(format!("there are more than {CERTIFICATES_MAX} certificates in it"));
        }
        let mut grants = HashMap::with_capacity(whole.certificate.len());
        for entry in whole.certificate {
            let name = entry.name.clone();
            let wrong = |why: String| format!("certificate '{name}': {why}");
            let grant = Arc::new(entry.grant().map_err(wrong)?);
            if grants.insert(name.clone(), grant).is_some() {
                return Err(wrong("it has two entries".to_owned()));
            }
        }
        Ok(Self(grants))
    }

    /// Returns the number of certificates.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the grant of the certificate with this name, if the file has an entry for it.
    pub(super) fn grant(&self, name: &str) -> Option<Arc<Grant>> {
        self.0.get(name).cloned()
    }
}

impl RightsEntry {
    fn grant(self) -> Result<Grant, String> {
        let Self { name, clients, locks: prefixes, steal, cluster } = self;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(format!("a name has 1 to {NAME_BYTES_MAX} bytes"));
        }
        if prefixes.len() > PREFIXES_MAX {
            return Err(format!("locks names at most {PREFIXES_MAX} beginnings of names"));
        }
        let clients = clients.unwrap_or_else(|| vec![name.clone(), format!("{name}:*")]);
        if clients.is_empty() || clients.iter().any(String::is_empty) {
            return Err("clients names at least one, such as \"laptop1:*\"".to_owned());
        }
        let clients = clients.iter().map(|text| ClientPattern::parse(text)).collect();
        let credential = Credential::Certificate;
        Ok(Grant { credential, name, clients, prefixes, steal, cluster, user: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ClientId, LockName};

    #[test]
    fn an_entry_limits_a_certificate() {
        let text = "[[certificate]]\nname = \"laptop1\"\nlocks = [\"team/\"]\n";
        let rights = CertificateRights::parse(text).expect("well formed");
        let grant = rights.grant("laptop1").expect("it has an entry");
        let client = |text| ClientId::parse(text).expect("valid");
        let lock = |text| LockName::parse(text).expect("valid");
        assert!(grant.may_speak_as(&client("laptop1:ann")).is_ok());
        assert!(grant.may_speak_as(&client("laptop2")).is_err());
        assert!(grant.may_touch(&lock("team/x")).is_ok());
        assert!(grant.may_touch(&lock("other")).is_err());
        assert!(!grant.steal && !grant.cluster);
        assert!(rights.grant("laptop2").is_none());
    }

    #[test]
    fn the_number_of_certificates_is_limited() {
        let entry = |number| format!("[[certificate]]\nname = \"n{number}\"\nlocks = [\"a/\"]\n");
        let text: String = (0..CERTIFICATES_MAX).map(entry).collect();
        assert_eq!(
            CertificateRights::parse(&text).map(|rights| rights.len()),
            Ok(CERTIFICATES_MAX)
        );
        let why = CertificateRights::parse(&(text + &entry(CERTIFICATES_MAX))).err();
        assert!(why.is_some_and(|why| why.contains("more than 10000")));
    }

    #[test]
    fn the_file_of_rights_has_a_longest_length() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("latchfs-rights-{}", std::process::id()));
        let entry = "[[certificate]]\nname = \"a\"\nlocks = []\n#";
        let read = |bytes: u64| {
            let text = entry.to_owned() + &"x".repeat(bytes as usize - entry.len());
            std::fs::write(&path, text).expect("it is written");
            let private = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&path, private).expect("it is ours");
            CertificateRights::read(&path).map(|rights| rights.len())
        };
        assert_eq!(read(FILE_BYTES_MAX).ok(), Some(1));
        let why = read(FILE_BYTES_MAX + 1).expect_err("one byte more").to_string();
        assert!(why.contains("longer than 16777216 bytes"), "{why}");
        let _ = std::fs::remove_file(&path);
    }

    #[test]
    fn invalid_file_is_explained() {
        for (text, says) in [
            ("[[certificate]]\nname = \"a\"\n", "locks"),
            ("[[certificate]]\nname = \"\"\nlocks = []\n", "1 to 255"),
            ("[[certificate]]\nname = \"a\"\nlocks = []\nclients = []\n", "at least one"),
            ("[[certificate]]\nname = \"a\"\nlocks = []\nstael = true\n", "stael"),
            (
                "[[certificate]]\nname = \"a\"\nlocks = []\n[[certificate]]\nname = \"a\"\n\
                 locks = []\n",
                "two entries",
            ),
        ] {
            let why = CertificateRights::parse(text).err().unwrap_or_default();
            assert!(why.contains(says), "{text}: {why}");
        }
    }
}
