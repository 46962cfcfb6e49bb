//! The devices that have joined a server: a file in its data directory, which is the list of the
//! client certificates that it admits. A certificate that is not in it is refused, although the CA
//! of the server has signed it.

use crate::base::said;
use crate::net::certificates::CertSerial;
use crate::storage::atomic_file::{Durable, replace};
use crate::time::Wall;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::{fmt, fs, io};

/// Maximum number of devices, with those that were removed.
const DEVICES_MAX: usize = 1_000;

/// Maximum length of the name of a device.
const NAME_BYTES_MAX: usize = 64;

/// The version of the file.
const VERSION: u32 = 1;

/// A machine that has joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Device {
    /// The client as which the device acts.
    pub(crate) name: String,
    /// The serial numbers of its certificate, and of the one before: the device may have sent its
    /// request for a new one, and not have received it.
    pub(crate) serials: Vec<String>,
    /// When it joined, in seconds since 1970.
    pub(crate) since: i64,
    /// Until when its certificate is valid.
    pub(crate) until: i64,
    /// When it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) removed: Option<i64>,
}

/// All devices of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeviceList(Vec<Device>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceFile {
    version: u32,
    devices: Vec<Device>,
}

/// A new certificate of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IssuedCertificate {
    pub(crate) pem: String,
    pub(crate) serial: CertSerial,
    /// Until when it is valid, in seconds since 1970.
    pub(crate) until: i64,
}

/// Why a device can't join, as the end of a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeviceError {
    /// The name is not that of a device.
    Name,
    /// Another device has this name, or the server itself.
    Taken(String),
    /// There are as many devices as there may be.
    Full,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => write!(
                f,
                "a device has a name of letters, digits, '-', '_' and '.', {NAME_BYTES_MAX} at \
                 most; choose one by --name NAME"
            ),
            Self::Taken(name) => write!(
                f,
                "there is a machine '{name}' already; remove it by 'latchfs devices remove {name}' \
                 at the server, or join under another name by --name NAME"
            ),
            Self::Full => write!(
                f,
                "{DEVICES_MAX} devices have joined, and there is room for no more; remove one by \
                 'latchfs devices remove NAME' at the server"
            ),
        }
    }
}

/// Whether a device may have this name. A name with a colon would be that of a user of a device.
pub(crate) fn is_device_name(name: &str) -> bool {
    let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_short = (1..=NAME_BYTES_MAX).contains(&name.len());
    is_short && !name.starts_with(['.', '-']) && name.chars().all(is_known)
}

impl DeviceList {
    /// Reads the file; one that is missing has no devices.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let wrong = |why: String| Err(io::Error::other(why));
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        match serde_json::from_str(&text) {
            Ok(DeviceFile { version: VERSION, devices }) => Ok(Self(devices)),
            Ok(DeviceFile { version, .. }) => {
                wrong(format!("it has version {version}, and this program knows {VERSION}"))
            }
            Err(error) => wrong(format!("it is not a list of devices: {}", said(&error))),
        }
    }

    /// Replaces the file atomically, and returns when it is on the disk.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let file = DeviceFile { version: VERSION, devices: self.0.clone() };
        let text = serde_json::to_string_pretty(&file)? + "\n";
        replace(path, &[text.as_bytes()], Durable::Yes).map(drop)
    }

    /// Whether the list has a device with this certificate that was not removed.
    pub(crate) fn admits(&self, name: &str, serial: &CertSerial) -> bool {
        self.present(name)
            .is_some_and(|device| device.serials.iter().any(|it| *it == serial.text()))
    }

    /// Checks whether a device may join under this name.
    pub(crate) fn check(&self, name: &str) -> Result<(), DeviceError> {
        if !is_device_name(name) {
            return Err(DeviceError::Name);
        }
        if self.present(name).is_some() {
            return Err(DeviceError::Taken(name.to_owned()));
        }
        if self.present_count() < DEVICES_MAX { Ok(()) } else { Err(DeviceError::Full) }
    }

    /// Adds a device, whose name was checked. The one that was removed first makes room for it.
    pub(crate) fn add(&mut self, name: &str, issued: &IssuedCertificate, now: Wall) {
        self.0.retain(|device| device.name != name);
        if self.0.len() >= DEVICES_MAX
            && let Some(place) = self.0.iter().position(|device| device.removed.is_some())
        {
            self.0.remove(place);
        }
        let serials = vec![issued.serial.text().to_owned()];
        let (name, since, until) = (name.to_owned(), now.secs, issued.until);
        self.0.push(Device { name, serials, since, until, removed: None });
    }

    /// Replaces the certificate of a device. The one by which it has asked stays valid.
    pub(crate) fn renew(&mut self, name: &str, asked_by: &CertSerial, issued: &IssuedCertificate) {
        if let Some(device) = self.0.iter_mut().find(|it| it.name == name && it.removed.is_none()) {
            device.serials = vec![asked_by.text().to_owned(), issued.serial.text().to_owned()];
            device.until = issued.until;
        }
    }

    /// Removes a device. Returns whether there was one.
    pub(crate) fn remove(&mut self, name: &str, now: Wall) -> bool {
        let mut present = self.0.iter_mut().filter(|it| it.name == name && it.removed.is_none());
        present.next().map(|device| device.removed = Some(now.secs)).is_some()
    }

    /// Returns all devices, in the order in which they joined.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.0.iter()
    }

    /// Returns the number of devices that were not removed.
    pub(crate) fn present_count(&self) -> usize {
        self.devices().filter(|device| device.removed.is_none()).count()
    }

    fn present(&self, name: &str) -> Option<&Device> {
        self.devices().find(|device| device.name == name && device.removed.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issued(serial: &str) -> IssuedCertificate {
        let serial = CertSerial::parse(serial).expect("hex");
        IssuedCertificate { pem: String::new(), serial, until: 9 }
    }

    fn at(secs: i64) -> Wall {
        Wall { secs, nanos: 0 }
    }

    #[test]
    fn certificate_is_admitted_until_its_device_is_removed() {
        let mut list = DeviceList::default();
        let (old, new, newest) = (issued("1a"), issued("2b"), issued("3c"));
        assert!(!list.admits("laptop", &old.serial), "nobody has joined");
        list.add("laptop", &old, at(1));
        assert!(list.admits("laptop", &old.serial) && !list.admits("laptop2", &old.serial));
        list.renew("laptop", &old.serial, &new);
        assert!(list.admits("laptop", &old.serial) && list.admits("laptop", &new.serial));
        list.renew("laptop", &new.serial, &newest);
        assert!(!list.admits("laptop", &old.serial) && list.admits("laptop", &newest.serial));
        assert_eq!(list.check("laptop"), Err(DeviceError::Taken("laptop".to_owned())));
        assert!(list.remove("laptop", at(2)) && !list.remove("laptop", at(3)));
        assert!(!list.admits("laptop", &newest.serial));
        assert_eq!(list.check("laptop"), Ok(()));
        list.add("laptop", &old, at(4));
        assert!(!list.admits("laptop", &newest.serial), "of the one that was removed");
        assert_eq!(list.devices().count(), 1);
    }

    #[test]
    fn list_survives_in_its_file() {
        let path = std::env::temp_dir().join(format!("latchfs-devices-{}", std::process::id()));
        assert_eq!(DeviceList::read(&path).expect("none yet"), DeviceList::default());
        let mut list = DeviceList::default();
        list.add("laptop", &issued("1a"), at(1));
        list.add("phone", &issued("2b"), at(1));
        list.remove("phone", at(2));
        list.write(&path).expect("our directory");
        assert_eq!(DeviceList::read(&path).expect("written"), list);
        for wrong in ["", "{}", "{\"version\":2,\"devices\":[]}"] {
            fs::write(&path, wrong).expect("our directory");
            assert!(DeviceList::read(&path).is_err(), "{wrong}");
        }
        let _ = fs::remove_file(&path);
    }

    #[test]
    fn devices_are_limited_and_removed_ones_make_room() {
        let mut list = DeviceList::default();
        for number in 0..DEVICES_MAX {
            list.add(&format!("d{number}"), &issued("1a"), at(1));
        }
        assert_eq!(list.check("one-more"), Err(DeviceError::Full));
        list.remove("d7", at(2));
        assert_eq!(list.check("one-more"), Ok(()));
        list.add("one-more", &issued("1a"), at(3));
        assert_eq!(list.devices().count(), DEVICES_MAX);
        assert!(list.devices().all(|device| device.name != "d7"));
    }

    #[test]
    fn name_of_a_device_has_bounds() {
        let longest = "x".repeat(NAME_BYTES_MAX);
        for right in ["laptop", "box.local", "a", &longest] {
            assert!(is_device_name(right), "{right}");
        }
        let longer = "x".repeat(NAME_BYTES_MAX + 1);
        for wrong in ["", "laptop:root", "a/b", "a*", "-x", ".x", "\u{e9}", "a b", &longer] {
            assert_eq!(DeviceList::default().check(wrong), Err(DeviceError::Name), "{wrong}");
        }
    }
}
