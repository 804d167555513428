//! Verifies a storage file without changing it. redb repairs a damaged file by going back to an older commit, which would
//! lose acknowledged writes; here it does so in memory, and the caller learns of it.

use std::fs::OpenOptions;
use std::io;
use std::ops::Bound;
use std::path::Path;

use parking_lot::Mutex;
use redb::backends::FileBackend;
use redb::{BackendError, Builder, Error, StorageBackend};

/// Whether all pages of the file are as they were committed. A file that was in use when its process was killed is: what
/// was not committed is not part of it. An empty or missing file is, too.
pub(super) fn is_undamaged(path: &Path) -> Result<bool, Error> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    let mut database = Builder::new().create_with_backend(UnchangedFile::new(FileBackend::new(file)?)?)?;
    Ok(database.check_integrity()?)
}

/// A file whose changes are kept in memory.
#[derive(Debug)]
struct UnchangedFile {
    file: FileBackend,
    state: Mutex<ChangedParts>,
}

#[derive(Debug)]
struct ChangedParts {
    length: u64,
    /// The length of the file itself that is still part of it.
    file_length: u64,
    /// Offsets and bytes, in the order of the writes. A repair makes some hundred.
    writes: Vec<(u64, Vec<u8>)>,
}

impl UnchangedFile {
    fn new(file: FileBackend) -> io::Result<UnchangedFile> {
        let length = file.len()?;
        let state = Mutex::new(ChangedParts { length, file_length: length, writes: Vec::new() });
        Ok(UnchangedFile { file, state })
    }
}

/// Copies the part of `data` at `offset` that overlaps with `out` at `start`.
fn overlay(out: &mut [u8], start: u64, data: &[u8], offset: u64) {
    let (out_end, data_end) = (start + out.len() as u64, offset + data.len() as u64);
    let (from, to) = (start.max(offset), out_end.min(data_end));
    if from < to {
        let index = |position: u64, base: u64| usize::try_from(position - base).unwrap_or(usize::MAX);
        out[index(from, start)..index(to, start)].copy_from_slice(&data[index(from, offset)..index(to, offset)]);
    }
}

impl StorageBackend for UnchangedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        if offset + out.len() as u64 > state.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let of_file = state.file_length.saturating_sub(offset).min(out.len() as u64);
        let of_file = usize::try_from(of_file).unwrap_or(out.len());
        self.file.read(offset, &mut out[..of_file])?;
        out[of_file..].fill(0);
        for (at, data) in &state.writes {
            overlay(out, offset, data, *at);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.file_length = state.file_length.min(len);
        for (at, data) in &mut state.writes {
            data.truncate(usize::try_from(len.saturating_sub(*at)).unwrap_or(usize::MAX));
        }
        state.length = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.state.lock().writes.push((offset, data.to_vec()));
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use redb::StorageBackend;
    use redb::backends::FileBackend;

    use super::UnchangedFile;

    #[test]
    fn writes_are_read_back_and_the_file_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, b"abcdef").expect("a file");
        let file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("the file");
        let backend = UnchangedFile::new(FileBackend::new(file).expect("a backend")).expect("a backend");
        let read = |offset, length| {
            let mut out = vec![0; length];
            backend.read(offset, &mut out).map(|()| String::from_utf8_lossy(&out).into_owned()).ok()
        };
        backend.write(1, b"XY").expect("a write");
        backend.write(2, b"Z").expect("a write");
        assert_eq!(read(0, 6).as_deref(), Some("aXZdef"));
        backend.set_len(2).expect("a length");
        backend.set_len(4).expect("a length");
        assert_eq!(read(0, 4).as_deref(), Some("aX\0\0"), "what was cut off is zero");
        assert_eq!(read(0, 5), None);
        assert_eq!(fs::read(&path).expect("the file"), b"abcdef");
    }
}
