//! Ports on 127.0.0.1 for the demo's programs.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context, Result};

pub(super) fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Different ports that are free now.
pub(super) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let open = || TcpListener::bind(local(0)).context("could not find a free port");
    let listeners: Vec<TcpListener> = (0..N).map(|_| open()).collect::<Result<_>>()?;
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr().context("could not find a free port")?.port();
    }
    Ok(ports)
}
