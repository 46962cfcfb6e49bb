//! Dispatches requests to their endpoints: builds the router from the table of routes, and checks
//! the limits and permissions of every request first.
//!
//! The checks run synchronously, and only the handler itself is asynchronous: the state of a
//! waiting request stays small, which matters because thousands of requests may wait.

use crate::auth::authentication::BrowserHeaders;
use crate::auth::connection_limits::{ConnectionOrigin, PeerIdentity};
use crate::auth::permissions::{Operation, Right};
use crate::auth::{Grant, WRONG_TOKEN_DELAY};
use crate::engine::RefusalKind;
use crate::server::http::access_log::LoggedRequest;
use crate::server::http::app_state::AppState;
use crate::server::http::bodies::problem::Problem;
use crate::server::http::bodies::response;
use crate::server::http::bodies::response::Response;
use crate::server::http::handlers::list;
use crate::server::http::handlers::lock_resource;
use crate::server::http::request_context::Endpoint;
use crate::server::http::request_context::HttpCaller;
use crate::server::http::request_context::{HandlerFuture, RequestContext, RequestSubject};
use crate::server::http::routes::route_table::{
    PREVIOUS, ROUTES, Route, STEAL, internal_endpoints,
};
use crate::server::lock_log::AuditedCaller;
use crate::shares::{Identity, TableShare};
use crate::time::{Span, boot_now};
use axum::Router;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{Method, StatusCode, header};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::sleep;
use tower_service::Service;

/// Builds the router from the table of routes and the internal endpoints.
pub(in crate::server::http) fn router(app: &Arc<AppState>) -> Router {
    let mut router = Router::new();
    let mut first = 0;
    for route in ROUTES {
        let endpoints = PathEndpoints::Of(route, first);
        first += route.endpoints.len();
        let Some(pattern) = route.pattern else { continue };
        router = router.route_service(pattern, PathService { app: Arc::clone(app), endpoints });
    }
    for (number, (pattern, endpoint)) in internal_endpoints().enumerate() {
        let endpoints = PathEndpoints::Single(endpoint, first + number);
        router = router.route_service(pattern, PathService { app: Arc::clone(app), endpoints });
    }
    router.fallback(|request: Request| async move {
        let logged = LoggedRequest::of(&request);
        let problem = Problem::no_such_path(request.uri().path());
        let mut response = logged.refused(None, problem).into_response();
        logged.answered(&mut response, None, Span::ZERO);
        response
    })
}

/// The service that handles all requests to one URL path.
#[derive(Clone)]
struct PathService {
    app: Arc<AppState>,
    endpoints: PathEndpoints,
}

/// The endpoints of one URL path.
#[derive(Clone, Copy)]
enum PathEndpoints {
    /// A route of the table of routes, and the index of its first endpoint in the request counters.
    Of(&'static Route, usize),
    /// An internal endpoint, which only latchfs clients use, and its index in the request counters.
    Single(&'static Endpoint, usize),
}

impl PathEndpoints {
    /// Returns the endpoint that serves a request, and the endpoint's index in the request
    /// counters.
    fn choose(self, request: &Request) -> Result<(&'static Endpoint, usize), Problem> {
        let (endpoints, first) = match self {
            Self::Of(route, first) if is_steal(request) => (STEAL, first + route.endpoints.len()),
            Self::Of(route, first) if list::is_meant(request.method(), request.uri().path()) => {
                (PREVIOUS, first + route.endpoints.len() + STEAL.len())
            }
            Self::Of(route, first) => (route.endpoints, first),
            Self::Single(endpoint, number) => (std::slice::from_ref(endpoint), number),
        };
        let method = match *request.method() {
            Method::HEAD => &Method::GET,
            _ => request.method(),
        };
        let Some(place) = endpoints.iter().position(|endpoint| endpoint.method == *method) else {
            let allowed: Vec<&str> =
                endpoints.iter().map(|endpoint| endpoint.method.as_str()).collect();
            return Err(Problem::wrong_method(method.as_str(), &allowed.join(", ")));
        };
        Ok((&endpoints[place], first + place))
    }
}

/// Whether a request steals a lock. The router can't tell, because `/steal` could also be the end
/// of a lock's name.
fn is_steal(request: &Request) -> bool {
    request.method() == Method::POST && lock_resource::steal_of(request.uri().path()).is_some()
}

impl Service<Request> for PathService {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let logged = LoggedRequest::of(&request);
        let (endpoint, number) = match self.endpoints.choose(&request) {
            Ok(chosen) => chosen,
            Err(problem) => {
                let mut response = logged.refused(None, problem).into_response();
                logged.answered(&mut response, None, Span::ZERO);
                return Box::pin(ready(Ok(response)));
            }
        };
        let (app, received_at) = (Arc::clone(&self.app), boot_now());
        let begun = begin(endpoint, Arc::clone(&app), request, logged.subject());
        Box::pin(async move {
            let mut credential = None;
            let done = match begun {
                Ok(begun) => {
                    let Begun { answering, caller, identity, asking } = begun;
                    let charge = |response| {
                        let is_backup = endpoint.operation == Operation::BackUp;
                        let table = if is_backup { &app.backups } else { &app.answers };
                        response::charge(response, table, is_backup, &identity, asking)
                            .map_err(|full| Problem::of(RefusalKind::Limit, full.to_string()))
                    };
                    let done = answering.await.and_then(charge);
                    credential = caller.as_ref().map(|(grant, _)| Arc::clone(grant));
                    if let (Err(problem), Some((grant, origin))) = (&done, &caller) {
                        audit_refusal(&app, grant, origin, endpoint.operation, problem);
                    }
                    done
                }
                Err(problem) => Err(problem),
            };
            let caller = credential.as_ref().map(|grant| &*grant.name);
            let failed = |problem| logged.refused(caller, problem).into_response();
            let (mut response, took) = (done.unwrap_or_else(failed), boot_now().since(received_at));
            app.requests.count(number, response.status(), took);
            logged.answered(&mut response, caller, took);
            Ok(response)
        })
    }
}

/// A request whose handler has started.
struct Begun {
    answering: HandlerFuture,
    /// The caller, whose refusal the handler may still report; `None` if it is recorded already.
    caller: Option<(Arc<Grant>, Arc<ConnectionOrigin>)>,
    /// The identity to which the answer is charged.
    identity: Identity,
    /// Counts the request as open, until its answer is sent.
    asking: TableShare,
}

/// Records a request in the audit log if `problem` is a refusal because of its credentials or its
/// origin.
fn audit_refusal(
    app: &AppState,
    grant: &Grant,
    origin: &ConnectionOrigin,
    operation: Operation,
    problem: &Problem,
) {
    if let Some(reason) = problem.denial() {
        AuditedCaller { grant, origin }.refused(&app.locks, operation, reason);
    }
}

/// Starts the handler of a request, after checking that its address has not too many open requests,
/// that it does not come from a web page of another site, and that its caller may perform the
/// operation.
fn begin(
    endpoint: &'static Endpoint,
    app: Arc<AppState>,
    request: Request,
    subject: RequestSubject,
) -> Result<Begun, Problem> {
    let (head, body) = request.into_parts();
    let origin = head.extensions.get::<Arc<ConnectionOrigin>>();
    let Some(origin) = origin.cloned() else {
        let detail = "the server does not know which connection this request came by";
        return Err(Problem::plain(StatusCode::INTERNAL_SERVER_ERROR, detail));
    };
    let asking =
        origin.count_request().map_err(|full| Problem::of(RefusalKind::Limit, full.to_string()))?;
    let operation = endpoint.operation;
    let refused = |grant: &Grant, origin: &ConnectionOrigin, problem: Problem| {
        audit_refusal(&app, grant, origin, operation, &problem);
        problem
    };
    // A page can make a browser read any address; a backup is too costly for that.
    let only_reads = head.method == Method::GET && operation != Operation::BackUp;
    check_page(&app, &head, &origin, only_reads)
        .map_err(|problem| refused(&Grant::nothing(), &origin, problem))?;
    let caller = HttpCaller::of(&head.headers, origin);
    let grant = match caller.grant(&app.gate) {
        Ok(grant) => grant,
        Err(_) if operation.rule().right == Right::Public => Arc::new(Grant::nothing()),
        Err(problem) => {
            // A token that is wrong names nobody; a refused certificate still has a name.
            let named = caller.origin.certified.as_ref().map(|caller| Arc::clone(&caller.grant));
            let grant = named.unwrap_or_else(|| Arc::new(Grant::nothing()));
            let problem = refused(&grant, &caller.origin, problem);
            if !caller.has_sent() {
                return Err(problem);
            }
            let slowly = async {
                sleep(WRONG_TOKEN_DELAY).await;
                Err(problem)
            };
            let identity = caller.origin.identity_of(&Grant::nothing());
            let answering = Box::pin(slowly);
            return Ok(Begun { answering, caller: None, identity, asking });
        }
    };
    grant
        .may_begin(operation)
        .map_err(|denial| refused(&grant, &caller.origin, Problem::denied(&denial)))?;
    let (params, identity) = (endpoint.doc.params, caller.origin.identity_of(&grant));
    let audited = Some((Arc::clone(&grant), Arc::clone(&caller.origin)));
    let payer = identity.clone();
    let body = Mutex::new(body);
    let context = RequestContext { app, grant, caller, identity, params, head, body, subject };
    let answering = (endpoint.run)(context);
    Ok(Begun { answering, caller: audited, identity: payer, asking })
}

/// Fails if a browser sent the request for a web page of another site. A browser can reach every
/// server that its user can reach, for example on loopback, and pages of other sites must not
/// exploit that.
fn check_page(
    app: &AppState,
    head: &Parts,
    origin: &ConnectionOrigin,
    only_reads: bool,
) -> Result<(), Problem> {
    if head.headers.get_all(header::HOST).iter().nth(1).is_some() {
        return Err(Problem::invalid("the request has more than one Host header; send one"));
    }
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let host = head.uri.authority().map(Authority::as_str).or_else(|| text("host"));
    let headers = BrowserHeaders { host, origin: text("origin"), site: text("sec-fetch-site") };
    if headers.are_of_another_site(only_reads) {
        let detail = "cross-site requests are not allowed; use this server's own page";
        return Err(Problem::of(RefusalKind::Denied, detail));
    }
    // A web page can't make a browser send requests to a Unix socket.
    if matches!(origin.source, PeerIdentity::Address(_)) && !app.gate.admits_host(host) {
        let detail = "this server has another name, so a web page may have sent the request; call \
                      it by its address, or start it with --name and the name";
        return Err(Problem::of(RefusalKind::Denied, detail));
    }
    Ok(())
}
