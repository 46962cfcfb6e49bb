//! The invitations of a server and the devices that have joined it: what the requests of
//! `handlers::devices` share.
//!
//! Invitations are in memory, so that a restart ends them. The list of devices is on the disk
//! before a device is told that it has joined, or its remover that it is gone.

use super::bodies::problem::{HandlerResult, Problem};
use super::ca::sign_device;
use crate::auth::Authenticator;
use crate::base::said;
use crate::home::devices::{DeviceError, DeviceList, IssuedCertificate, is_device_name};
use crate::home::invitations::{
    ConfirmedDevice, INVITATION_SPAN, Invitations, JoinConfirmation, JoinHello, JoinRefusal,
};
use crate::home::messages::InviteResponse;
use crate::net::certificates::CertSerial;
use crate::time::{Time, Wall};
use axum::http::StatusCode;
use parking_lot::Mutex;
use rand_core::OsRng;
use std::path::{Path, PathBuf};
use std::{fs, io};
use tokio::sync::watch;

/// The file with the list of devices, in the directory of the certificate authority.
pub(crate) const DEVICES_FILE: &str = "devices.json";

/// The port that a machine joins unless it is told another one.
const PORT: u16 = 8443;

pub(super) struct Home {
    dir: PathBuf,
    /// The certificate of the CA (PEM).
    ca: String,
    /// What another machine is told to join.
    host: String,
    /// Locked while an invitation or the list of devices changes.
    pub(super) invitations: Mutex<Invitations>,
    /// Notified when an invitation has ended.
    pub(super) changed: watch::Sender<()>,
}

/// Returns the problem of a device that can't have its name, or for which there is no room.
pub(super) fn refused_name(error: &DeviceError) -> Problem {
    Problem::plain(StatusCode::CONFLICT, error.to_string())
}

impl Home {
    /// Opens the directory of a certificate authority.
    pub(super) fn open(dir: &Path, port: Option<u16>) -> io::Result<Self> {
        let ca = fs::read_to_string(dir.join("ca.pem"))?;
        let host = own_name();
        let host = match port {
            None | Some(PORT) => host,
            Some(port) => format!("{host}:{port}"),
        };
        let (dir, invitations) = (dir.to_owned(), Mutex::default());
        Ok(Self { dir, ca, host, invitations, changed: watch::channel(()).0 })
    }

    /// Returns the certificate of the CA (PEM).
    pub(super) fn ca(&self) -> &str {
        &self.ca
    }

    /// Opens an invitation. `None`: there are as many as there may be.
    pub(super) fn invite(&self, now: Time, name: Option<String>) -> Option<InviteResponse> {
        let (id, code) = self.invitations.lock().invite(now, name, &mut OsRng)?;
        let (slot, lasts_ms) = (code.slot, INVITATION_SPAN.as_millis());
        Some(InviteResponse { slot, id, code: code.to_string(), host: self.host.clone(), lasts_ms })
    }

    /// Answers the first message of a device.
    pub(super) fn begin(
        &self,
        now: Time,
        hello: JoinHello,
    ) -> Result<(u64, Vec<u8>), JoinRefusal<Problem>> {
        if !is_device_name(&hello.name) {
            return Err(JoinRefusal::Device(refused_name(&DeviceError::Name)));
        }
        let begun = self.invitations.lock().begin(now, hello, &mut OsRng);
        begun.map_err(|_| JoinRefusal::Malformed)
    }

    /// Checks the confirmation of a device, and registers it. Returns the device and its
    /// certificate.
    pub(super) fn confirm(
        &self,
        now: Time,
        gate: &Authenticator,
        given: &JoinConfirmation<'_>,
    ) -> Result<(ConfirmedDevice, IssuedCertificate), JoinRefusal<Problem>> {
        let register = |device: &ConfirmedDevice| {
            check_name(gate, &device.name).map_err(|error| refused_name(&error))?;
            let issued = self.sign(&device.name, &device.request)?;
            let mut list = devices(gate);
            list.add(&device.name, &issued, Wall::now());
            self.store(gate, list)?;
            Ok(issued)
        };
        let joined = self.invitations.lock().confirm(now, given, register);
        self.changed.send_replace(());
        joined
    }

    /// Signs a new certificate for a device that has shown its present one.
    pub(super) fn renew(
        &self,
        gate: &Authenticator,
        name: &str,
        asked_by: &CertSerial,
        request: &str,
    ) -> HandlerResult<IssuedCertificate> {
        let _changing = self.invitations.lock();
        let issued = self.sign(name, request)?;
        let mut list = devices(gate);
        list.renew(name, asked_by, &issued);
        self.store(gate, list)?;
        Ok(issued)
    }

    /// Removes a device. Returns whether there was one.
    pub(super) fn remove(&self, gate: &Authenticator, name: &str) -> HandlerResult<bool> {
        let _changing = self.invitations.lock();
        let mut list = devices(gate);
        let was_there = list.remove(name, Wall::now());
        if was_there {
            self.store(gate, list)?;
        }
        Ok(was_there)
    }

    fn sign(&self, name: &str, request: &str) -> HandlerResult<IssuedCertificate> {
        sign_device(&self.dir, name, request)
            .map_err(|error| Problem::plain(StatusCode::BAD_REQUEST, error.to_string()))
    }

    /// Writes the list, and then puts it into force.
    fn store(&self, gate: &Authenticator, list: DeviceList) -> HandlerResult<()> {
        list.write(&self.dir.join(DEVICES_FILE)).map_err(|error| {
            let why = format!(
                "the server can't keep its list of devices ({}); make room on its disk, and try \
                 again",
                said(&error)
            );
            Problem::plain(StatusCode::SERVICE_UNAVAILABLE, why)
        })?;
        gate.set_devices(list);
        Ok(())
    }
}

/// Returns the devices that have joined.
pub(super) fn devices(gate: &Authenticator) -> DeviceList {
    gate.devices().map(|list| DeviceList::clone(&list)).unwrap_or_default()
}

/// Checks whether a device may join under this name. The name of the server is that of its own
/// users.
pub(super) fn check_name(gate: &Authenticator, name: &str) -> Result<(), DeviceError> {
    devices(gate).check(name)?;
    let is_own = name.eq_ignore_ascii_case(&own_name());
    if is_own { Err(DeviceError::Taken(name.to_owned())) } else { Ok(()) }
}

/// Returns the host name of this machine.
fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
