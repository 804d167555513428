//! Published floods of HTTP/2 frames, while honest clients are timed. Each test has the id of the weakness.

use testkit::frames::{CONTINUATION, END_HEADERS, HEADERS, PING, RST_STREAM, SETTINGS, frame};

use crate::floods::{REQUEST, no_harm};

/// Frames, or pairs of frames, of one flood.
const COUNT: u32 = 20_000;
/// The error code of a stream that its client no longer wants.
const CANCEL: [u8; 4] = 8_u32.to_be_bytes();

/// Streams that are opened and reset at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cve_2023_44487_rapid_resets_do_no_harm() {
    no_harm("rapid resets", COUNT, |number| {
        let stream = 2 * number + 1;
        [frame(HEADERS, END_HEADERS, stream, REQUEST), frame(RST_STREAM, 0, stream, &CANCEL)].concat()
    })
    .await;
}

/// Headers that never end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cve_2023_45288_endless_continuations_do_no_harm() {
    // A literal header that is not indexed, with a name of one letter and a value of 1,000.
    let value = [&[0x00, 0x01, b'a', 0x7f, 0xe9, 0x06], &[b'x'; 1000][..]].concat();
    no_harm("endless continuations", COUNT, |number| match number {
        0 => frame(HEADERS, 0, 1, REQUEST),
        _ => frame(CONTINUATION, 0, 1, &value),
    })
    .await;
}

/// Frames that each need an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cve_2019_9512_pings_and_settings_do_no_harm() {
    no_harm("pings and settings", COUNT, |number| match number % 2 {
        0 => frame(PING, 0, 0, &[7; 8]),
        _ => frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
    })
    .await;
}

/// Cookies in many small pieces, which servers join again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cve_2026_47774_crumbs_of_cookies_do_no_harm() {
    // `cookie` by its index in the static table, a value of one letter, added to the dynamic table.
    let crumbs = [REQUEST, &[0x60, 0x01, b'a'].repeat(5_000)].concat();
    no_harm("crumbs of cookies", COUNT, |number| {
        let stream = 2 * number + 1;
        [frame(HEADERS, END_HEADERS, stream, &crumbs), frame(RST_STREAM, 0, stream, &CANCEL)].concat()
    })
    .await;
}
