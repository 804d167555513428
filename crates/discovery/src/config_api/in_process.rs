//! The configuration API as an API server for other parts of this process, without a connection: statuses and
//! the lease of the replica that writes them are stored in it, as they are in Kubernetes.

use std::convert::Infallible;

use configapi::http::ApiService;
use configapi::users::Caller;
use http::Request;
use sources::kubernetes::access::{Access, KubeBody};
use tower::service_fn;

/// The user that writes.
const USER: &str = "pilot-discovery";

pub(super) fn access(service: ApiService) -> Access {
    Access::service(service_fn(move |request: Request<KubeBody>| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(service.respond(request, Some(Caller::administrator(USER))).await) }
    }))
}
