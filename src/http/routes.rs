//! What can be asked: one table, from which the router and the document are made.

use super::app::App;
use super::call::{Answering, Call, Response};
use super::health;
use super::peers::Peer;
use super::problem::Problem;
use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::routing::any;
use std::sync::Arc;

/// One path, and what can be done there.
pub(super) struct Route {
    /// As the router matches it.
    pub(super) pattern: &'static str,
    pub(super) acts: &'static [Act],
}

/// One method at a path.
pub(super) struct Act {
    pub(super) method: Method,
    run: fn(Call) -> Answering,
}

/// All of it.
pub(super) static ROUTES: &[Route] = &[
    Route {
        pattern: "/healthz",
        acts: &[Act { method: Method::GET, run: |call| Box::pin(health::alive(call)) }],
    },
    Route {
        pattern: "/readyz",
        acts: &[Act { method: Method::GET, run: |call| Box::pin(health::ready(call)) }],
    },
];

/// The router of the table.
pub(super) fn router(app: &Arc<App>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let app = Arc::clone(app);
        let handler = move |request: Request| answer(route, Arc::clone(&app), request);
        router = router.route(route.pattern, any(handler));
    }
    router.fallback(|request: Request| async move {
        Problem::no_such_path(request.uri().path()).into_response()
    })
}

async fn answer(route: &'static Route, app: Arc<App>, request: Request) -> Response {
    let method = match *request.method() {
        Method::HEAD => &Method::GET,
        _ => request.method(),
    };
    let Some(act) = route.acts.iter().find(|act| act.method == *method) else {
        let allowed: Vec<&str> = route.acts.iter().map(|act| act.method.as_str()).collect();
        return Problem::wrong_method(method.as_str(), &allowed.join(", ")).into_response();
    };
    let (head, body) = request.into_parts();
    let asking = head.extensions.get::<Arc<Peer>>().map(Peer::ask);
    let Some(_counted) = asking.unwrap_or(None) else {
        let detail = "too many requests of this address wait for an answer; try again later";
        return Problem::plain(StatusCode::TOO_MANY_REQUESTS, detail).into_response();
    };
    let grant = Arc::clone(&app.anyone);
    match (act.run)(Call { app, grant, head, body }).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}
