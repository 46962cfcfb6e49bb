//! The file of bearer tokens, with the name, clients and lock prefixes of each token.
//!
//! A presented token is compared by its digest, with all tokens, in constant time.

use super::grant::{ClientPattern, Credential, Grant};
use crate::os_error::said;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// Minimum length of a secret in bytes: a shorter one could be guessed by trying.
const SECRET_BYTES_MIN: usize = 16;

/// Maximum length of a token's name, which is part of audit records and of the idempotency keys
/// that the engine stores.
pub(super) const NAME_BYTES_MAX: usize = 255;

/// Maximum number of tokens, because each request is compared with all of them.
const TOKENS_MAX: usize = 1_000;

/// Maximum number of lock prefixes of one token, because a listing looks up each of them.
pub(super) const PREFIXES_MAX: usize = 256;

/// Permission bits of all users but the owner of the file.
const OTHERS: u32 = 0o077;

/// The digest and grant of each token in the file.
pub(super) struct Tokens(Vec<([u8; 32], Arc<Grant>)>);

/// Why a token file can't be used.
#[derive(Debug)]
pub enum TokensError {
    /// The file can't be read.
    Read(io::Error),
    /// Users other than the owner may read or write the file. The number is the mode of the file.
    Exposed(u32),
    /// Users other than the owner may write the file. The number is the mode of the file.
    Writable(u32),
    /// The content of the file is invalid; a description of the error.
    Wrong(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    #[serde(default)]
    token: Vec<TokenEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    secret: Option<String>,
    sha256: Option<String>,
    clients: Vec<String>,
    #[serde(default = "all_locks")]
    locks: Vec<String>,
    #[serde(default)]
    steal: bool,
    #[serde(default)]
    cluster: bool,
}

fn all_locks() -> Vec<String> {
    vec![String::new()]
}

impl fmt::Display for TokensError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => write!(f, "it can't be read: {}", said(error)),
            Self::Exposed(mode) => write!(
                f,
                "others than its owner may read or write it (mode {mode:03o}); 'chmod 600' it"
            ),
            Self::Writable(mode) => {
                write!(f, "others than its owner may write it (mode {mode:03o}); 'chmod go-w' it")
            }
            Self::Wrong(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for TokensError {}

impl Tokens {
    /// Reads the token file at `path`, which no user but its owner may be able to access.
    pub(super) fn read(path: &Path) -> Result<Self, TokensError> {
        let mut file = File::open(path).map_err(TokensError::Read)?;
        let mode = file.metadata().map_err(TokensError::Read)?.mode() & 0o777;
        if mode & OTHERS != 0 {
            return Err(TokensError::Exposed(mode));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(TokensError::Read)?;
        Self::parse(&text).map_err(TokensError::Wrong)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let whole: TokenFile = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        if whole.token.is_empty() {
            return Err("it has no [[token]], so it would allow no request".to_owned());
        }
        if whole.token.len() > TOKENS_MAX {
            return Err(format!("there are more than {TOKENS_MAX} tokens in it"));
        }
        let mut tokens: Vec<([u8; 32], Arc<Grant>)> = Vec::with_capacity(whole.token.len());
        for entry in whole.token {
            let name = entry.name.clone();
            let (digest, grant) = entry.read().map_err(|why| format!("token '{name}': {why}"))?;
            if tokens.iter().any(|(other, _)| *other == digest) {
                return Err(format!("token '{name}': another has the same secret"));
            }
            tokens.push((digest, Arc::new(grant)));
        }
        Ok(Self(tokens))
    }

    /// Returns the number of tokens.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the grant of the token with this `secret`, if there is one.
    pub(super) fn grant(&self, secret: &[u8]) -> Option<Arc<Grant>> {
        let digest = digest_of(secret);
        let mut found = u32::MAX;
        // Compares the digest of the secret with that of every token, so that the time taken does
        // not reveal whether a token matches, or which.
        for (number, (known, _)) in (0..).zip(&self.0) {
            let same: Choice = known.as_slice().ct_eq(digest.as_slice());
            found.conditional_assign(&number, same);
        }
        self.0.get(found as usize).map(|(_, grant)| Arc::clone(grant))
    }
}

impl TokenEntry {
    fn read(self) -> Result<([u8; 32], Grant), String> {
        let digest = match (&self.secret, &self.sha256) {
            (Some(secret), None) if secret.len() < SECRET_BYTES_MIN => {
                return Err(format!("a secret has at least {SECRET_BYTES_MIN} bytes"));
            }
            (Some(secret), None) => digest_of(secret.as_bytes()),
            (None, Some(hex)) => bytes_of(hex).ok_or("sha256 is 64 digits of hexadecimal")?,
            _ => return Err("it needs either a secret or a sha256".to_owned()),
        };
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            return Err(format!("a name has 1 to {NAME_BYTES_MAX} bytes"));
        }
        if self.clients.is_empty() || self.clients.iter().any(String::is_empty) {
            return Err("clients names at least one, such as \"laptop1:*\"".to_owned());
        }
        if self.locks.len() > PREFIXES_MAX {
            return Err(format!("locks names at most {PREFIXES_MAX} beginnings of names"));
        }
        let clients = self.clients.iter().map(|text| ClientPattern::parse(text)).collect();
        let Self { name, locks: prefixes, steal, cluster, .. } = self;
        let credential = Credential::Token;
        Ok((digest, Grant { credential, name, clients, prefixes, steal, cluster, user: None }))
    }
}

fn digest_of(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

fn bytes_of(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).ok()?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ClientId, LockName};

    const ONE: &str = r#"
        [[token]]
        name = "laptop1"
        secret = "correct horse battery"
        clients = ["laptop1", "laptop1:*"]
        locks = ["team/"]

        [[token]]
        name = "admin"
        sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
        clients = ["*"]
        steal = true
    "#;

    #[test]
    fn a_token_is_known_by_its_secret_or_digest() {
        let tokens = Tokens::parse(ONE).expect("well formed");
        let laptop = tokens.grant(b"correct horse battery").expect("known");
        assert_eq!((laptop.name.as_str(), laptop.steal), ("laptop1", false));
        let client = |text| ClientId::parse(text).expect("valid");
        assert!(laptop.may_speak_as(&client("laptop1:alice")).is_ok());
        assert!(laptop.may_speak_as(&client("laptop2")).is_err());
        assert!(laptop.may_touch(&LockName::parse("team/x").expect("valid")).is_ok());
        assert!(laptop.may_touch(&LockName::parse("other").expect("valid")).is_err());
        assert_eq!(tokens.grant(b"test").map(|grant| grant.name.clone()), Some("admin".into()));
        assert!(tokens.grant(b"").is_none() && tokens.grant(b"correct horse batterz").is_none());
    }

    #[test]
    fn invalid_file_is_explained() {
        let entry = |rest: &str| format!("[[token]]\nname = \"x\"\n{rest}\n");
        for (text, says) in [
            (String::new(), "no [[token]]"),
            ("[[token]".to_owned(), "expected"),
            (entry("secret = \"0123456789abcdef\""), "clients"),
            (entry("secret = \"short\"\nclients = [\"a\"]"), "16 bytes"),
            (entry("sha256 = \"xyz\"\nclients = [\"a\"]"), "hexadecimal"),
            (entry("clients = [\"a\"]"), "either a secret"),
            (entry("secret = \"0123456789abcdef\"\nclients = []"), "at least one"),
            (entry("secret = \"0123456789abcdef\"\nclients = [\"a\"]\nstael = true"), "stael"),
        ] {
            let why = Tokens::parse(&text).err().unwrap_or_default();
            assert!(why.contains(says), "{text}: {why}");
        }
    }

    #[test]
    fn the_numbers_of_tokens_and_prefixes_are_limited() {
        let parse = |tokens: usize, prefixes: usize| {
            let locks: Vec<_> = (0..prefixes).map(|number| format!("'team{number}/'")).collect();
            let entry = |number: usize| {
                let secret = format!("the secret of number {number}");
                let locks = locks.join(",");
                format!("[[token]]\nname='x'\nsecret='{secret}'\nclients=['a']\nlocks=[{locks}]\n")
            };
            Tokens::parse(&(0..tokens).map(entry).collect::<String>())
        };
        assert!(parse(TOKENS_MAX, 1).is_ok());
        assert!(parse(TOKENS_MAX + 1, 1).is_err_and(|why| why.contains("more than 1000 tokens")));
        assert!(parse(1, PREFIXES_MAX).is_ok());
        assert!(parse(1, PREFIXES_MAX + 1).is_err_and(|why| why.contains("at most 256")));
    }
}
