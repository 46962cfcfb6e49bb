//! The devices that have joined a server, which its engine remembers: so all nodes of a cluster
//! have the same ones. A certificate that is not among theirs is refused, although the CA of the
//! server has signed it.

use crate::net::certificates::CertSerial;
use crate::time::Wall;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Maximum number of devices.
pub(crate) const DEVICES_MAX: usize = 1_000;

/// Maximum length of the name of a device.
const NAME_BYTES_MAX: usize = 64;

/// A machine that has joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Device {
    /// The serial numbers of its certificate, and of the one before: the device may have sent its
    /// request for a new one, and not have received it.
    pub(crate) serials: Vec<String>,
    /// When it joined, in seconds since 1970.
    pub(crate) since: i64,
    /// Until when its certificate is valid.
    pub(crate) until: i64,
}

/// All devices of a server, by their names: the clients as which they act.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeviceList(BTreeMap<String, Device>);

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

impl Device {
    /// Returns a device that joins with its first certificate.
    pub(crate) fn new(issued: &IssuedCertificate, now: Wall) -> Self {
        let serials = vec![issued.serial.text().to_owned()];
        Self { serials, since: now.secs, until: issued.until }
    }

    /// Returns the device with a new certificate. The one by which it has asked stays valid. `None`
    /// if that is not one of this device: another machine has joined under the name meanwhile.
    pub(crate) fn renewed(
        &self,
        asked_by: &CertSerial,
        issued: &IssuedCertificate,
    ) -> Option<Self> {
        let serials = vec![asked_by.text().to_owned(), issued.serial.text().to_owned()];
        self.has(asked_by).then_some(Self { serials, since: self.since, until: issued.until })
    }

    fn has(&self, serial: &CertSerial) -> bool {
        self.serials.iter().any(|own| *own == serial.text())
    }

    /// Returns the text by which the engine remembers the device.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses that text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

impl DeviceList {
    /// Returns the list of the devices with these names and texts. A text that is not that of a
    /// device admits nobody.
    pub(crate) fn of(names: impl Iterator<Item = (String, Arc<str>)>) -> Self {
        Self(names.filter_map(|(name, text)| Some((name, Device::parse(&text)?))).collect())
    }

    /// Whether a device has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether the list has a device with this certificate.
    pub(crate) fn admits(&self, name: &str, serial: &CertSerial) -> bool {
        self.0.get(name).is_some_and(|device| device.has(serial))
    }

    /// Checks whether a device may join under this name.
    pub(crate) fn check(&self, name: &str) -> Result<(), DeviceError> {
        if !is_device_name(name) {
            return Err(DeviceError::Name);
        }
        if self.has(name) {
            return Err(DeviceError::Taken(name.to_owned()));
        }
        if self.len() < DEVICES_MAX { Ok(()) } else { Err(DeviceError::Full) }
    }

    /// Returns all devices with their names, in order.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (&str, &Device)> {
        self.0.iter().map(|(name, device)| (&**name, device))
    }

    /// Returns the number of devices.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum length of the text by which the engine remembers a device, which is a handover.
    const TEXT_BYTES_MAX: usize = 256;

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
        let device = Device::new(&old, at(1));
        list.0.insert("laptop".to_owned(), device.clone());
        assert!(list.admits("laptop", &old.serial) && !list.admits("laptop2", &old.serial));
        let device = device.renewed(&old.serial, &new).expect("its certificate");
        list.0.insert("laptop".to_owned(), device.clone());
        assert!(list.admits("laptop", &old.serial) && list.admits("laptop", &new.serial));
        let device = device.renewed(&new.serial, &newest).expect("its certificate");
        // By then the first certificate is that of no device.
        assert_eq!(device.renewed(&old.serial, &new), None);
        list.0.insert("laptop".to_owned(), device);
        assert!(!list.admits("laptop", &old.serial) && list.admits("laptop", &newest.serial));
        assert_eq!(list.check("laptop"), Err(DeviceError::Taken("laptop".to_owned())));
        list.0.remove("laptop");
        assert!(!list.admits("laptop", &newest.serial));
        assert_eq!(list.check("laptop"), Ok(()));
    }

    #[test]
    fn device_is_read_from_its_text_and_any_other_text_admits_nobody() {
        let longest = "f".repeat(2 * 20);
        let serial = CertSerial::parse(&longest).expect("hex");
        let issued = IssuedCertificate { pem: String::new(), serial, until: i64::MAX };
        let device = Device::new(&issued, at(i64::MAX)).renewed(&issued.serial, &issued);
        let device = device.expect("its certificate");
        let text = device.text();
        assert!(text.len() <= TEXT_BYTES_MAX, "{text}");
        let of = |text: &str| DeviceList::of([("laptop".to_owned(), text.into())].into_iter());
        let list = of(&text);
        assert_eq!(list.devices().collect::<Vec<_>>(), [("laptop", &device)]);
        for wrong in ["", "{}", "{\"serials\":[],\"since\":1,\"until\":2,\"more\":3}"] {
            assert_eq!(of(wrong).len(), 0, "{wrong}");
        }
    }

    #[test]
    fn devices_are_limited() {
        let mut list = DeviceList::default();
        for number in 0..DEVICES_MAX {
            list.0.insert(format!("d{number}"), Device::new(&issued("1a"), at(1)));
        }
        assert_eq!(list.check("one-more"), Err(DeviceError::Full));
        list.0.remove("d7");
        assert_eq!(list.check("one-more"), Ok(()));
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
