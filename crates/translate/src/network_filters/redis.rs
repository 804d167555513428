//! The Redis proxy: sends commands to one cluster.

use api::envoy::config::listener::v3::Filter;
use api::envoy::extensions::filters::network::redis_proxy::v3::{RedisProxy, redis_proxy};
use api::{Duration, any};

use super::named;

/// Time limit of one command.
const COMMAND_TIMEOUT: Duration = Duration { seconds: 5, nanos: 0 };

pub(super) fn render(stat_prefix: &str, cluster: &str) -> Filter {
    use redis_proxy::prefix_routes::Route;
    let settings =
        redis_proxy::ConnPoolSettings { op_timeout: Some(COMMAND_TIMEOUT), ..redis_proxy::ConnPoolSettings::default() };
    let config = RedisProxy {
        stat_prefix: stat_prefix.into(),
        latency_in_micros: true,
        settings: Some(settings),
        prefix_routes: Some(redis_proxy::PrefixRoutes {
            catch_all_route: Some(Route { cluster: cluster.into(), ..Route::default() }),
            ..redis_proxy::PrefixRoutes::default()
        }),
        ..RedisProxy::default()
    };
    named("envoy.filters.network.redis_proxy", any(&config))
}
