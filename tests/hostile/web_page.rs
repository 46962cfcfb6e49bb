//! A hostile web page in the browser of a user who may use the server.

use crate::server_harness::Server;
use latchfs::time::{Span, boot_now};

/// The time within which the victim must get its answer during the attack.
const PROMPT: Span = Span::from_secs(1);

/// The server refuses changes by web pages of other sites: the browser reports the relation of the
/// page's site in the `Sec-Fetch-Site` header, which no page can set.
#[test]
fn cross_site_requests_change_nothing() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/build?client=victim"]).is(200);
    for site in ["cross-site", "same-site"] {
        let header = format!("Sec-Fetch-Site: {site}");
        for (method, path) in [
            ("POST", "/lock?client=x"),
            ("POST", "/locks/other?client=x"),
            ("POST", "/locks/build/steal?client=x"),
            ("DELETE", "/locks/build?client=victim"),
            ("POST", "/sessions?client=x"),
        ] {
            let denied = server.curl(&["-X", method, "-H", &header, path]).is(403);
            assert_eq!(denied["kind"], "E_DENIED", "{method} {path}");
        }
        // A page of another site may link to the server's status page: a GET of the page succeeds.
        assert_eq!(server.curl(&["-H", &header, "/"]).code, 200);
        let asked = boot_now();
        let seen = server.curl(&["/locks/build"]).is(200);
        assert_eq!(seen["holder"], "victim");
        assert_eq!(server.curl(&["/locks/other"]).is(200)["phase"], "free");
        assert!(boot_now().since(asked) < PROMPT, "the victim waits");
    }
    server.curl(&["-X", "POST", "-H", "Sec-Fetch-Site: same-origin", "/lock?client=x"]).is(200);
}
