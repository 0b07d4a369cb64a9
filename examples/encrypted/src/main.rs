//! A store whose HDD and SSD are encrypted: `cargo run -p pagetier-example-encrypted -- DIR KEYFILE`.
//!
//! KEYFILE holds 64 random bytes: `head -c 64 /dev/urandom > KEYFILE`.

use pagetier::PageStore;
use pagetier::device::{OpenOptions, open_file};
use pagetier_example_encrypted::encrypted;
use std::path::PathBuf;
use std::process::ExitCode;

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A sentence, not the error's fields, which `main` would print if it returned the error.
            eprintln!("{}", pagetier::errors::Causes(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Failure> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(dir), Some(key)) = (args.next(), args.next()) else {
        return Err("usage: pagetier-example-encrypted DIR KEYFILE".into());
    };
    let named = key.display().to_string();
    let key = std::fs::read(key).map_err(|error| format!("{named}: {error}"))?;
    std::fs::create_dir_all(&dir)?;
    let options = OpenOptions { create: true, ..OpenOptions::default() };
    let device = |name: &str| -> Result<_, Failure> {
        let file = open_file(&dir.join(name), &options)?.device;
        Ok(encrypted(file, &key).map_err(|bad| format!("{named} has {} bytes: {bad}", key.len()))?)
    };
    let store = PageStore::builder()
        .directory(&dir)
        .hdd(device("hdd.encrypted")?)
        .ssd(device("ssd.encrypted")?)
        .ssd_bytes(64 << 20)
        .open()
        .await?;
    let space = match store.spaces().find("secrets") {
        Some(space) => space,
        None => store.spaces().create("secrets").await?,
    };
    let mut page = store.allocate(space).await?;
    page[..13].copy_from_slice(b"secret enough");
    println!("wrote page {}", page.id());
    drop(page);
    store.close().await?;
    Ok(())
}
