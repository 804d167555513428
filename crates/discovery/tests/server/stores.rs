//! Two config stores with the same object: the first store's object wins; when it is deleted, the second store's applies.

use testkit::{client, wait};

use crate::started::{SHOP, Started, folder};

/// The host of `shop/pay`, and all problems.
async fn shown(server: &mut Started) -> (Vec<String>, String) {
    let address = server.port("http").await;
    let get = async |path: &str| client::get(address, "discovery", path).await.unwrap();
    let objects = get("/debug/configz").await.json();
    let hosts = objects.as_array().unwrap().iter().filter(|object| object["metadata"]["name"] == "pay");
    let hosts = hosts.map(|object| object["spec"]["hosts"][0].as_str().unwrap().to_owned()).collect();
    (hosts, get("/debug/problems").await.body)
}

#[tokio::test]
async fn the_first_store_has_precedence() {
    let folder = folder();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    for (store, host) in [(&first, "one.example"), (&second, "two.example")] {
        std::fs::create_dir(store).unwrap();
        std::fs::write(store.join("shop.yaml"), SHOP.replace("pay.example", host)).unwrap();
    }
    let sources = [&first, &second].map(|store| format!("- address: fs://{}\n", store.display()));
    std::fs::write(folder.path().join("mesh.yaml"), format!("configSources:\n{}", sources.concat())).unwrap();
    let mut server = Started::on(folder, &["--registries="]);
    server.ready().await;
    let (hosts, problems) = shown(&mut server).await;
    assert_eq!(hosts, ["one.example"]);
    let name = format!("stores files and files/{} both have this object; only that of files is used", second.display());
    assert!(problems.contains(&name) && problems.contains("ServiceEntry shop/pay"), "{problems}");

    std::fs::remove_file(first.join("shop.yaml")).unwrap();
    let address = server.port("http").await;
    wait::until("the other store's", async || {
        let objects = client::get(address, "discovery", "/debug/configz").await?.body;
        if objects.contains("two.example") { Ok(()) } else { Err(objects) }
    })
    .await;
    let (hosts, problems) = shown(&mut server).await;
    assert_eq!(hosts, ["two.example"]);
    assert!(!problems.contains("both have this object"), "{problems}");
}
