//! Protection of servers from web pages: which `Host` and `Origin` a request may have.
//!
//! A browser can reach servers that its user can reach, on loopback for instance. A page of another
//! site names itself in `Origin` and `Sec-Fetch-Site`. A page whose own name resolves to the
//! address of the server (DNS rebinding) does not, but the name is the `Host` of its requests.

use std::net::IpAddr;

/// The host names by which a server without credentials may be called, beside IP addresses and
/// `localhost`. A request to an IP address can't come from DNS rebinding.
#[derive(Debug, Clone, Default)]
pub struct AllowedHosts(pub Vec<String>);

/// The headers by which a browser describes the page that sends a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BrowserHeaders<'a> {
    /// The authority of the request: `Host`, or `:authority` in HTTP/2.
    pub(crate) host: Option<&'a str>,
    pub(crate) origin: Option<&'a str>,
    /// The header `Sec-Fetch-Site`, which no page can set.
    pub(crate) site: Option<&'a str>,
}

impl AllowedHosts {
    /// Whether a request with this `Host` may be meant for the server. Browsers always send one.
    pub(crate) fn admit(&self, host: Option<&str>) -> bool {
        let Some(name) = host.map(without_port) else { return true };
        let is = |allowed: &str| name.eq_ignore_ascii_case(allowed);
        name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
            || is("localhost")
            || self.0.iter().any(|allowed| is(allowed))
    }
}

impl BrowserHeaders<'_> {
    /// Whether the request comes from a page of another site. A request that only reads may come
    /// from a link on any page; its answer is shown to the user, and no page can read it.
    pub(crate) fn are_of_another_site(&self, only_reads: bool) -> bool {
        match (self.site, self.origin) {
            (Some("same-origin" | "none"), _) | (None, None) => false,
            (Some(_), origin) => !only_reads || origin.is_some(),
            (None, Some(origin)) => !self.is_own(origin),
        }
    }

    fn is_own(&self, origin: &str) -> bool {
        let authority = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
        authority.zip(self.host).is_some_and(|(one, other)| one.eq_ignore_ascii_case(other))
    }
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_names_are_hosts() {
        let hosts = AllowedHosts(vec!["box.lan".to_owned()]);
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:80", "[::1]", "box.lan:9"]
        {
            assert!(hosts.admit(Some(host)), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:80", "box.lan.evil", "x", ""] {
            assert!(!hosts.admit(Some(host)), "{host}");
        }
        assert!(hosts.admit(None));
    }

    #[test]
    fn pages_of_other_sites_are_recognized() {
        let headers = |host, origin, site| BrowserHeaders { host: Some(host), origin, site };
        let own = headers("box:80", Some("http://BOX:80"), None);
        assert!(!own.are_of_another_site(false));
        assert!(!headers("a", None, None).are_of_another_site(false), "no browser");
        assert!(
            !headers("proxied", Some("https://b"), Some("same-origin")).are_of_another_site(false)
        );
        for origin in ["http://evil.example", "null", "http://box:81", "file://"] {
            assert!(headers("box:80", Some(origin), None).are_of_another_site(true), "{origin}");
        }
        let link = headers("a", None, Some("cross-site"));
        assert!(!link.are_of_another_site(true) && link.are_of_another_site(false));
        let fetch = headers("a", Some("http://b"), Some("cross-site"));
        assert!(fetch.are_of_another_site(true));
    }
}
