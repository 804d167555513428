//! `--configDir`: changes and failures of a watched folder.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use sources::health::SourceState;
use sources::store::files::FileStore;
use tempfile::TempDir;

use crate::follower::Follower;

/// A config folder inside a temporary folder, so that it can be removed.
struct Folder {
    _outer: TempDir,
    root: PathBuf,
}

impl Folder {
    fn new() -> Folder {
        let outer = tempfile::tempdir().expect("a temporary folder");
        let root = outer.path().join("config");
        fs::create_dir(&root).expect("create the folder");
        Folder { _outer: outer, root }
    }

    fn with(files: &[(&str, &str)]) -> Folder {
        let folder = Folder::new();
        for (name, text) in files {
            folder.write(name, text);
        }
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("inside the root")).expect("create folders");
        fs::write(path, text).expect("write a file");
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).expect("remove a file");
    }

    async fn followed(&self) -> Follower {
        Follower::synced(FileStore::new(&self.root)).await
    }
}

fn service(name: &str, host: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{hosts: [{host}], http: [{{route: [{{destination: {{host: {host}}}}}]}}]}}\n"
    )
}

/// An object with an invalid spec and a valid name.
fn broken(name: &str) -> String {
    service(name, "h").replace("hosts: [h]", "hosts: 7")
}

#[tokio::test]
async fn yaml_files_of_the_whole_tree_are_read_before_sync() {
    let folder = Folder::with(&[
        ("a.yaml", &format!("{}---\n{}", service("a", "a"), service("b", "b"))),
        ("deep/er/c.yml", &service("c", "c")),
        ("d.json", &service("d", "d")),
        (".#e.yaml", &service("e", "e")),
    ]);
    let follower = folder.followed().await;
    assert_eq!(follower.names(), ["a", "b", "c"]);
    let left_out = "d.json: the file is left out: only .yaml and .yml files are read";
    assert!(matches!(&follower.problems[..], [only] if only.ends_with(left_out)), "{:?}", follower.problems);
    assert_eq!(follower.report().state, SourceState::Live);
}

#[tokio::test]
async fn edits_new_files_and_deletions_are_sent() {
    let folder = Folder::with(&[("a.yaml", &service("a", "one"))]);
    let mut follower = folder.followed().await;
    folder.write("a.yaml", &service("a", "two"));
    follower.until("the edit", |f| f.host("a") == Some("two")).await;
    folder.write("new/folder/b.yaml", &service("b", "b"));
    follower.until("a file in a new folder", |f| f.host("b") == Some("b")).await;
    folder.write("new/folder/b.yaml", &service("b", "b2"));
    follower.until("an edit in a new folder", |f| f.host("b") == Some("b2")).await;
    folder.remove("a.yaml");
    follower.until("the deletion", |f| f.names() == ["b"]).await;
    fs::remove_dir_all(folder.path("new")).expect("remove a subfolder");
    follower.until("a folder's deletion", |f| f.objects.is_empty()).await;
}

#[tokio::test]
async fn an_object_rewritten_with_the_same_meaning_is_not_sent() {
    let folder = Folder::with(&[("a.yaml", &service("a", "a"))]);
    let mut follower = folder.followed().await;
    folder.write("a.yaml", &format!("# a comment\n---\n{}", service("a", "\"a\"")));
    folder.write("marker.yaml", &service("marker", "m"));
    follower.until("the marker", |f| f.host("marker").is_some()).await;
    assert_eq!(follower.log, ["+VirtualService shop/a", "+VirtualService shop/marker"]);
}

#[tokio::test]
async fn a_rename_over_the_file_is_one_change() {
    let folder = Folder::with(&[("a.yaml", &service("a", "one"))]);
    let mut follower = folder.followed().await;
    folder.write("a.yaml.tmp", &service("a", "two"));
    fs::rename(folder.path("a.yaml.tmp"), folder.path("a.yaml")).expect("rename");
    follower.until("the new version", |f| f.host("a") == Some("two")).await;
    assert_eq!(follower.log, ["+VirtualService shop/a"; 2]);
}

#[tokio::test]
async fn an_editor_that_moves_the_file_away_first_loses_nothing() {
    let folder = Folder::with(&[("a.yaml", &service("a", "one"))]);
    let mut follower = folder.followed().await;
    fs::rename(folder.path("a.yaml"), folder.path("a.yaml~")).expect("move away");
    folder.write("a.yaml", &service("a", "two"));
    follower.until("the new version", |f| f.host("a") == Some("two")).await;
    assert_eq!(follower.log, ["+VirtualService shop/a"; 2]);
}

#[tokio::test]
async fn a_file_that_moves_keeps_its_object() {
    let folder = Folder::with(&[("a.yaml", &service("a", "a"))]);
    let mut follower = folder.followed().await;
    fs::rename(folder.path("a.yaml"), folder.path("z.yaml")).expect("rename");
    folder.write("marker.yaml", &service("marker", "m"));
    follower.until("the marker", |f| f.host("marker").is_some()).await;
    folder.remove("z.yaml");
    follower.until("the deletion", |f| f.names() == ["marker"]).await;
    assert_eq!(follower.log, ["+VirtualService shop/a", "+VirtualService shop/marker", "-VirtualService shop/a"]);
}

#[tokio::test]
async fn one_bad_document_is_reported_with_its_line_and_the_others_are_used() {
    let text = format!("{}---\na: [\n---\n{}", service("a", "a"), service("b", "b"));
    let folder = Folder::with(&[("a.yaml", &text), ("c.yaml", &service("c", "c"))]);
    let follower = folder.followed().await;
    assert_eq!(follower.names(), ["a", "b", "c"]);
    let place = format!("{}:", folder.path("a.yaml").display());
    assert!(follower.has_problem(&[&place, "could not parse the document"]), "{:?}", follower.problems);
}

#[tokio::test]
async fn an_object_that_becomes_invalid_keeps_its_last_valid_version() {
    let both = |a: String| format!("{a}---\n{}", service("b", "b"));
    let folder = Folder::with(&[("a.yaml", &both(service("a", "one")))]);
    let mut follower = folder.followed().await;
    folder.write("a.yaml", &both(broken("a")));
    follower.until("the problem", |f| f.has_problem(&["shop/a", "keeping the last good version"])).await;
    assert_eq!(follower.host("a"), Some("one"));
    folder.write("a.yaml", &both(service("a", "two")));
    follower.until("the repair", |f| f.host("a") == Some("two") && f.problems.is_empty()).await;
    folder.write("a.yaml", &service("b", "b"));
    follower.until("the removal", |f| f.names() == ["b"]).await;
}

#[tokio::test]
async fn an_invalid_object_is_reported_and_left_out() {
    let invalid = service("a", "h").replace("route: [{destination: {host: h}}]", "retries: {attempts: -1}");
    let folder = Folder::with(&[("a.yaml", &format!("{invalid}---\n{}", service("b", "b")))]);
    let mut follower = folder.followed().await;
    assert_eq!(follower.names(), ["b"]);
    assert!(follower.has_problem(&["a.yaml:4", "VirtualService shop/a"]), "{:?}", follower.problems);
    folder.write("a.yaml", &service("a", "good"));
    follower.until("the repair", |f| f.host("a") == Some("good")).await;
    folder.write("a.yaml", &invalid);
    follower.until("the problem", |f| f.has_problem(&["shop/a", "keeping the last good version"])).await;
    assert_eq!(follower.host("a"), Some("good"));
}

#[tokio::test]
async fn a_new_invalid_object_does_not_keep_others_that_were_removed() {
    let folder = Folder::with(&[("a.yaml", &service("a", "a"))]);
    let mut follower = folder.followed().await;
    folder.write("a.yaml", &broken("other"));
    follower.until("the removal", |f| f.objects.is_empty()).await;
    assert!(follower.has_problem(&["shop/other"]) && !follower.has_problem(&["keeping"]), "{:?}", follower.problems);
}

#[tokio::test]
async fn a_file_that_no_longer_parses_keeps_all_its_objects() {
    let folder = Folder::with(&[("a.yaml", &format!("{}---\n{}", service("a", "a"), service("b", "b")))]);
    let mut follower = folder.followed().await;
    for bad in ["{{{", "\u{0}", ""] {
        folder.write("a.yaml", bad);
        follower.until("the problem", |f| f.has_problem(&["a.yaml", "keeping the last good version"])).await;
        assert_eq!(follower.names(), ["a", "b"]);
        folder.write("a.yaml", &format!("{}---\n{}", service("a", "a"), service("b", "b")));
        follower.until("the repair", |f| f.problems.is_empty()).await;
    }
    fs::write(folder.path("a.yaml"), b"a: \xff\xfe").expect("write");
    follower.until("the problem", |f| f.has_problem(&["a.yaml", "UTF-8", "keeping the last good version"])).await;
    assert_eq!(follower.names(), ["a", "b"]);
}

#[tokio::test]
async fn a_document_keeps_its_last_valid_version_whatever_is_misspelt() {
    let folder = Folder::with(&[("a.yaml", &service("a", "good"))]);
    let mut follower = folder.followed().await;
    for (right, wrong) in [
        ("kind: VirtualService", "kind: VirtualServce"),
        ("networking.istio.io", "networking.istio.oi"),
        ("networking.istio.io/v1", "networking.istio.io/v7"),
        ("apiVersion:", "apiVersoin:"),
        ("kind:", "knid:"),
        ("metadata:", "metdata:"),
        ("{name:", "{nmae:"),
        ("namespace:", "namespce:"),
        ("spec:", "sepc:"),
    ] {
        folder.write("a.yaml", &service("a", "bad").replace(right, wrong));
        follower.until(wrong, |f| f.problems.iter().any(|p| p.contains("keeping the last good version"))).await;
        assert_eq!((follower.names(), follower.host("a")), (vec!["a"], Some("good")), "{wrong}");
        folder.write("a.yaml", &service("a", "good"));
        follower.until("the repaired file", |f| f.problems.is_empty()).await;
    }
    // A document of another kind replaces the object.
    folder.write("a.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: shop}\n");
    follower.until("the deletion", |f| f.objects.is_empty()).await;
}

#[tokio::test]
async fn a_file_that_is_broken_at_the_start_is_served_from_the_state_folder() {
    let folder = Folder::with(&[("a.yaml", &service("a", "good")), ("gone.yaml", &service("gone", "gone"))]);
    let state = tempfile::tempdir().expect("a state folder");
    let start = || FileStore::new(&folder.root).saving_in(state.path());
    let copies = || {
        fs::read_dir(state.path()).expect("a folder").flatten().flat_map(|e| fs::read_dir(e.path())).flatten().count()
    };
    drop(Follower::synced(start()).await);
    assert_eq!(copies(), 2);
    folder.write("a.yaml", &broken("a"));
    folder.remove("gone.yaml");
    let mut follower = Follower::synced(start()).await;
    follower.until("the last good content", |f| f.host("a") == Some("good")).await;
    assert_eq!(follower.names(), ["a"]);
    follower.until("the problem", |f| f.has_problem(&["a.yaml:4", "keeping the last good version"])).await;
    assert_eq!(copies(), 1);
    drop(follower);
    for text in ["", "a: [", "\u{0}"] {
        folder.write("a.yaml", text);
        let mut follower = Follower::synced(start()).await;
        follower.until("the last good content", |f| f.host("a") == Some("good")).await;
    }
    folder.write("a.yaml", &service("a", "better"));
    let mut follower = Follower::synced(start()).await;
    follower.until("the repaired file", |f| f.host("a") == Some("better")).await;
    assert_eq!(follower.problems, Vec::<String>::new());
}

#[tokio::test]
async fn a_half_written_file_is_not_read() {
    let whole = format!("{}---\n{}", service("a", "two"), service("b", "two"));
    let folder = Folder::with(&[("a.yaml", &format!("{}---\n{}", service("a", "one"), service("b", "one")))]);
    let mut follower = folder.followed().await;
    let (first, second) = whole.split_at(whole.find("---").expect("two documents"));
    let mut file = File::create(folder.path("a.yaml")).expect("truncate the file");
    folder.write("marker1.yaml", &service("marker1", "m"));
    follower.until("the first marker", |f| f.host("marker1").is_some()).await;
    file.write_all(first.as_bytes()).expect("write one half");
    folder.write("marker2.yaml", &service("marker2", "m"));
    follower.until("the second marker", |f| f.host("marker2").is_some()).await;
    assert_eq!((follower.host("a"), follower.host("b")), (Some("one"), Some("one")));
    file.write_all(second.as_bytes()).expect("write the other half");
    drop(file);
    follower.until("the whole file", |f| f.host("a") == Some("two") && f.host("b") == Some("two")).await;
    assert_eq!(follower.problems, Vec::<String>::new());
    assert!(follower.log.iter().all(|line| line.starts_with('+')), "{:?}", follower.log);
}

#[tokio::test]
async fn objects_of_a_file_moved_away_stay_while_the_new_one_is_written() {
    let folder = Folder::with(&[("a.yaml", &service("a", "one")), ("b.yaml", &service("b", "b"))]);
    let mut follower = folder.followed().await;
    fs::rename(folder.path("a.yaml"), folder.path("a.yaml~")).expect("move away");
    let mut file = File::create(folder.path("a.yaml")).expect("create the file");
    folder.remove("b.yaml");
    follower.until("another file's end", |f| f.host("b").is_none()).await;
    assert_eq!(follower.host("a"), Some("one"));
    file.write_all(service("a", "two").as_bytes()).expect("write");
    drop(file);
    follower.until("the new file", |f| f.host("a") == Some("two")).await;
}

#[tokio::test]
async fn files_of_a_linked_folder_are_removed_with_the_link() {
    let folder = Folder::new();
    let outside = tempfile::tempdir().expect("a temporary folder");
    fs::write(outside.path().join("a.yaml"), service("a", "one")).expect("write");
    symlink(outside.path(), folder.path("link")).expect("link");
    let mut follower = folder.followed().await;
    fs::write(outside.path().join("a.yaml"), service("a", "two")).expect("write");
    follower.until("an edit behind the link", |f| f.host("a") == Some("two")).await;
    folder.remove("link");
    follower.until("the link's end", |f| f.objects.is_empty()).await;
}

#[tokio::test]
async fn a_file_whose_writer_never_closes_it_is_read_after_a_while() {
    let folder = Folder::with(&[("a.yaml", &service("a", "one"))]);
    let mut follower = folder.followed().await;
    let mut file = File::create(folder.path("a.yaml")).expect("truncate the file");
    file.write_all(service("a", "two").as_bytes()).expect("write");
    follower.until("the open file", |f| f.host("a") == Some("two")).await;
}

/// Updates a mounted ConfigMap like kubelet: files are symlinks into `..data`, a symlink that is replaced.
fn publish_generation(root: &Path, generation: &str, files: &[(&str, String)]) {
    let folder = root.join(generation);
    fs::create_dir(&folder).expect("create a generation");
    for (name, text) in files {
        fs::write(folder.join(name), text).expect("write a file");
    }
    symlink(generation, root.join("..data_tmp")).expect("link the generation");
    fs::rename(root.join("..data_tmp"), root.join("..data")).expect("swap the link");
    for (name, _) in files {
        if !root.join(name).exists() {
            symlink(Path::new("..data").join(name), root.join(name)).expect("link the file");
        }
    }
}

#[tokio::test]
async fn a_new_version_of_a_mounted_config_map_is_read() {
    let folder = Folder::new();
    publish_generation(&folder.root, "..1", &[("a.yaml", service("a", "one")), ("b.yaml", service("b", "one"))]);
    let mut follower = folder.followed().await;
    assert_eq!(follower.names(), ["a", "b"]);
    assert_eq!(follower.problems, Vec::<String>::new());
    publish_generation(&folder.root, "..2", &[("a.yaml", service("a", "two")), ("c.yaml", service("c", "two"))]);
    fs::remove_dir_all(folder.path("..1")).expect("remove the old generation");
    fs::remove_file(folder.path("b.yaml")).expect("remove the dead link");
    follower.until("the swap", |f| f.host("a") == Some("two") && f.names() == ["a", "c"]).await;
    follower.until("no problem", |f| f.problems.is_empty()).await;
}

#[tokio::test]
async fn a_folder_behind_a_replaced_symlink_is_watched() {
    let folder = Folder::new();
    for generation in ["one", "two"] {
        folder.write(&format!("{generation}/a.yaml"), &service("a", generation));
    }
    symlink("one", folder.path("current")).expect("link");
    let mut follower = Follower::synced(FileStore::new(&folder.path("current"))).await;
    assert_eq!(follower.host("a"), Some("one"));
    symlink("two", folder.path("next")).expect("link");
    fs::rename(folder.path("next"), folder.path("current")).expect("swap");
    follower.until("the swap", |f| f.host("a") == Some("two")).await;
    folder.write("two/a.yaml", &service("a", "three"));
    follower.until("an edit behind the link", |f| f.host("a") == Some("three")).await;
    assert!(follower.log.iter().all(|line| line.starts_with('+')), "{:?}", follower.log);
}

#[tokio::test]
async fn a_symlinked_file_outside_of_the_folder_is_watched() {
    let folder = Folder::new();
    let outside = tempfile::tempdir().expect("a temporary folder");
    let target = outside.path().join("real.txt");
    fs::write(&target, service("a", "one")).expect("write");
    symlink(&target, folder.path("a.yaml")).expect("link");
    let mut follower = folder.followed().await;
    fs::write(&target, service("a", "two")).expect("write");
    follower.until("the edit", |f| f.host("a") == Some("two")).await;
}

#[tokio::test]
async fn a_cycle_of_symlinks_is_listed_once() {
    let folder = Folder::with(&[("sub/a.yaml", &service("a", "a"))]);
    symlink("..", folder.path("sub/up")).expect("link");
    symlink("sub", folder.path("again")).expect("link");
    let follower = folder.followed().await;
    assert_eq!(follower.names(), ["a"]);
    assert_eq!(follower.problems, Vec::<String>::new());
}

#[tokio::test]
async fn a_removed_folder_keeps_the_last_good_state_until_it_is_restored() {
    let folder = Folder::with(&[("a.yaml", &service("a", "one")), ("b.yaml", &service("b", "one"))]);
    let mut follower = folder.followed().await;
    fs::remove_dir_all(&folder.root).expect("remove the folder");
    follower.until("the problem", |f| f.has_problem(&["config", "keeping the last good state"])).await;
    assert_eq!(follower.names(), ["a", "b"]);
    assert!(matches!(follower.report().state, SourceState::Stale { .. }));
    fs::create_dir(&folder.root).expect("create the folder");
    follower.until("the problem", |f| f.has_problem(&["replaced by an empty one", "keeping"])).await;
    assert_eq!(follower.names(), ["a", "b"]);
    folder.write("a.yaml", &service("a", "two"));
    follower.until("the restored state", |f| f.host("a") == Some("two") && f.names() == ["a"]).await;
    follower.until("no problem", |f| f.problems.is_empty()).await;
    assert_eq!(follower.report().state, SourceState::Live);
}

#[tokio::test]
async fn a_folder_moved_away_and_back_loses_nothing() {
    let folder = Folder::with(&[("a.yaml", &service("a", "one"))]);
    let mut follower = folder.followed().await;
    let away = folder.root.with_file_name("away");
    fs::rename(&folder.root, &away).expect("move away");
    follower.until("the problem", |f| f.has_problem(&["keeping the last good state"])).await;
    fs::rename(&away, &folder.root).expect("move back");
    follower.until("no problem", |f| f.problems.is_empty()).await;
    folder.write("a.yaml", &service("a", "two"));
    follower.until("the edit", |f| f.host("a") == Some("two")).await;
    assert_eq!(follower.log, ["+VirtualService shop/a"; 2]);
}

#[tokio::test]
async fn a_folder_emptied_file_by_file_is_empty() {
    let folder = Folder::with(&[("a.yaml", &service("a", "a")), ("b.yaml", &service("b", "b"))]);
    let mut follower = folder.followed().await;
    folder.remove("a.yaml");
    folder.remove("b.yaml");
    follower.until("the deletions", |f| f.objects.is_empty()).await;
    assert_eq!(follower.problems, Vec::<String>::new());
}

#[tokio::test]
async fn a_missing_folder_is_in_sync_when_it_exists() {
    let folder = Folder::new();
    let root = folder.path("later");
    let mut follower = Follower::new(FileStore::new(&root));
    follower.until("the problem", |f| f.has_problem(&["later", "could not read the folder"])).await;
    assert_eq!((follower.synced, follower.report().state), (0, SourceState::Syncing));
    fs::create_dir(&root).expect("create the folder");
    follower.until("in sync", |f| f.synced == 1).await;
    fs::write(root.join("a.yaml"), service("a", "a")).expect("write");
    follower.until("a file", |f| f.host("a").is_some()).await;
}

#[tokio::test]
async fn a_file_that_cannot_be_read_keeps_its_objects() {
    let folder = Folder::with(&[("a.yaml", &service("a", "one")), ("b.yaml", &service("b", "one"))]);
    let mut follower = folder.followed().await;
    folder.remove("a.yaml");
    fs::create_dir(folder.path("a.yaml")).expect("a folder in place of the file");
    folder.remove("b.yaml");
    symlink("nowhere", folder.path("b.yaml")).expect("a link to nowhere");
    follower.until("one problem", |f| f.has_problem(&["a.yaml", "it is a folder; keeping"])).await;
    follower.until("the other", |f| f.has_problem(&["b.yaml", "the symlink is broken", "; keeping"])).await;
    assert_eq!(follower.names(), ["a", "b"]);
    fs::remove_dir(folder.path("a.yaml")).expect("remove the folder");
    folder.write("a.yaml", &service("a", "two"));
    folder.write("nowhere", &service("b", "two"));
    follower.until("both files", |f| f.host("a") == Some("two") && f.host("b") == Some("two")).await;
    follower.until("no problem", |f| !f.has_problem(&["; keeping"])).await;
    assert!(follower.log.iter().all(|line| line.starts_with('+')), "{:?}", follower.log);
}

#[tokio::test]
async fn of_two_files_with_one_object_the_first_by_name_wins() {
    let folder = Folder::with(&[("b.yaml", &service("x", "b")), ("c.yaml", &service("x", "c"))]);
    let mut follower = folder.followed().await;
    assert_eq!(follower.host("x"), Some("b"));
    let (b, c) = (folder.path("b.yaml").display().to_string(), folder.path("c.yaml").display().to_string());
    assert!(follower.has_problem(&[&format!("{c}:1"), &format!("also defined at {b}:1")]), "{:?}", follower.problems);
    folder.write("a.yaml", &service("x", "a"));
    follower.until("the new winner", |f| f.host("x") == Some("a") && f.problems.len() == 2).await;
    folder.remove("a.yaml");
    folder.remove("b.yaml");
    follower.until("the last one", |f| f.host("x") == Some("c") && f.problems.is_empty()).await;
    assert!(follower.log.iter().all(|line| line.starts_with('+')), "{:?}", follower.log);
}

#[tokio::test]
async fn a_valid_duplicate_wins_over_the_kept_version_of_an_invalid_one() {
    let folder = Folder::with(&[("a.yaml", &service("x", "old"))]);
    let mut follower = folder.followed().await;
    folder.write("a.yaml", &broken("x"));
    follower.until("the problem", |f| f.has_problem(&["keeping"])).await;
    folder.write("b.yaml", &service("x", "new"));
    follower.until("the good one", |f| f.host("x") == Some("new")).await;
}

#[tokio::test]
async fn ten_thousand_files_are_read_and_one_edit_parses_one_file() {
    let folder = Folder::new();
    for i in 0..10_000 {
        folder.write(&format!("{}/{i}.yaml", i % 10), &service(&format!("s{i}"), "h"));
    }
    let mut follower = folder.followed().await;
    assert_eq!(follower.objects.len(), 10_000);
    folder.write("3/5003.yaml", &service("s5003", "new"));
    follower.until("the edit", |f| f.host("s5003") == Some("new")).await;
    assert_eq!(follower.log.len(), 10_001);
}

#[tokio::test]
async fn the_last_of_many_fast_edits_is_read_and_no_object_is_lost() {
    let folder = Folder::with(&[("a.yaml", &service("a", "h0"))]);
    let mut follower = folder.followed().await;
    let path = folder.path("a.yaml");
    let writer = tokio::task::spawn_blocking(move || {
        for i in 1..=1000 {
            fs::write(&path, service("a", &format!("h{i}"))).expect("write");
        }
    });
    follower.until("the last edit", |f| f.host("a") == Some("h1000")).await;
    writer.await.expect("the writer");
    assert!(follower.log.iter().all(|line| line.starts_with('+')), "{:?}", follower.log);
    assert_eq!(follower.problems, Vec::<String>::new());
}

/// A random number generator with a fixed seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Makes one random change: writes a file in place or by rename, moves or deletes one, or removes a folder.
fn disturb(folder: &Folder, dice: &mut Dice, step: u64) {
    let n = dice.roll(8);
    let name = format!("{}/{n}.yaml", ["a", "b", "a/c"][dice.roll(3) as usize]);
    let text = service(&format!("s{n}"), &format!("h{step}"));
    let path = folder.path(&name);
    match dice.roll(10) {
        0..=3 => folder.write(&name, &text),
        4..=6 => {
            folder.write(&format!("{name}.tmp"), &text);
            fs::rename(folder.path(&format!("{name}.tmp")), path).expect("rename over");
        }
        7 if path.exists() => fs::rename(&path, path.with_file_name("moved.yaml")).expect("move"),
        8 if path.exists() => fs::remove_file(&path).expect("remove a file"),
        9 if step.is_multiple_of(7) && path.exists() => {
            fs::remove_dir_all(path.parent().expect("a folder")).expect("remove a folder");
        }
        _ => {}
    }
}

#[tokio::test]
async fn after_random_changes_the_state_is_that_of_a_fresh_start() {
    for seed in 1..=5 {
        let folder = Folder::new();
        let mut follower = folder.followed().await;
        let mut dice = Dice(seed * 0x9e37_79b9);
        for step in 0..200 {
            disturb(&folder, &mut dice, step);
        }
        let fresh = folder.followed().await;
        let meaning = |f: &Follower| f.objects.iter().map(|(k, o)| (k.clone(), o.spec.clone())).collect::<Vec<_>>();
        let (expected, problems) = (meaning(&fresh), fresh.problems);
        let what = format!("the end of story {seed}: {expected:?}");
        follower.until(&what, |f| meaning(f) == expected && f.problems == problems).await;
    }
}

#[tokio::test]
async fn a_pipe_is_not_waited_for() {
    let folder = Folder::with(&[("b.yaml", &service("b", "b"))]);
    let made = std::process::Command::new("mkfifo").arg(folder.path("a.yaml")).status().expect("run mkfifo");
    assert!(made.success());
    let follower = folder.followed().await;
    assert_eq!(follower.names(), ["b"]);
    assert!(follower.has_problem(&["a.yaml", "not a regular file"]), "{:?}", follower.problems);
}
