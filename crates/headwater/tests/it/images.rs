//! Folders of images as data: the same numbers as the same pixels in a file of tensors.

use headwater::core::{DType, Tensor};
use headwater::tensors::TensorFile;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit").join(file)
}

fn headwater(args: &[&str]) -> (bool, Value, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_headwater")).arg("--json").args(args).output().unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.success(), json, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Writes the held-out digits as images in folders, and as tensors of the same bytes in the folders' order.
fn write(folder: &Path, file: &Path) {
    let digits = TensorFile::read(&example("heldout.safetensors")).unwrap();
    let (images, labels) = (digits.get("images").unwrap(), digits.get("labels").unwrap());
    let mut all: Vec<(i64, usize)> = labels.ints().iter().copied().zip(0..).collect();
    all.sort();
    let mut values = Vec::new();
    for (label, i) in &all {
        let bytes: Vec<u8> =
            images.floats()[i * 64..][..64].iter().map(|x| (x * 255.0).round() as u8).collect();
        // As `ToTensor` divides.
        values.extend(bytes.iter().map(|&b| (b as f64 * (1.0 / 255.0)) as f32 as f64));
        let place = folder.join(label.to_string());
        std::fs::create_dir_all(&place).unwrap();
        let mut encoder =
            png::Encoder::new(std::fs::File::create(place.join(format!("{i:04}.png"))).unwrap(), 8, 8);
        encoder.set_color(png::ColorType::Grayscale);
        encoder.write_header().unwrap().write_image_data(&bytes).unwrap();
    }
    std::fs::write(folder.join("images.toml"), "channels = 1\nheight = 8\nwidth = 8\n").unwrap();
    let sorted: Vec<u8> = all.iter().flat_map(|(l, _)| l.to_le_bytes()).collect();
    let mut tensors = TensorFile::default();
    tensors.tensors.insert("images".into(), Tensor::float(DType::F32, images.shape().clone(), values));
    tensors.tensors.insert("labels".into(), Tensor::from_bytes(&labels.ty, &sorted));
    tensors.write(file).unwrap();
}

#[test]
fn a_folder_trains_and_evaluates_as_its_pixels_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, file) = (dir.path().join("digits"), dir.path().join("digits.safetensors"));
    write(&folder, &file);
    let model = example("digits_vit.pt2");
    let run = |data: &Path| {
        let (model, data) = (model.to_str().unwrap(), data.to_str().unwrap());
        let (ok, scores, said) = headwater(&["eval", model, "--data", data]);
        assert!(ok, "{said}");
        let args = ["train", model, "--data", data, "--eval", data, "--batch", "32", "--steps", "12"];
        let (ok, trained, said) = headwater(&args);
        assert!(ok, "{said}");
        let evaluation = |key: &str| trained["evaluation"][key].clone();
        (scores["scores"].clone(), trained["last_loss"].clone(), evaluation("loss"), evaluation("accuracy"))
    };
    let (mut images, tensors) = (run(&folder), run(&file));
    // The folder knows what its classes are called.
    for (label, class) in images.0["by_class"]["each"].as_array_mut().unwrap().iter_mut().enumerate() {
        assert_eq!(class.as_object_mut().unwrap().remove("name"), Some(label.to_string().into()));
    }
    assert!(tensors.1.is_f64() && tensors.0["counted"] == 360, "{tensors:?}");
    assert_eq!(images, tensors);

    // An image that is damaged is named, and so are classes that differ.
    let other = dir.path().join("other");
    std::fs::create_dir_all(other.join("7")).unwrap();
    std::fs::copy(folder.join("images.toml"), other.join("images.toml")).unwrap();
    let image = std::fs::read_dir(folder.join("7")).unwrap().next().unwrap().unwrap().path();
    std::fs::copy(&image, other.join("7/x.png")).unwrap();
    let (model, folder, other) = (model.to_str().unwrap(), folder.to_str().unwrap(), other.to_str().unwrap());
    let args = ["train", model, "--data", folder, "--eval", other, "--batch", "32", "--steps", "1"];
    let (ok, _, said) = headwater(&args);
    assert!(!ok && said.contains("classes") && said.contains("images.toml"), "{said}");
    std::fs::write(&image, b"\x89PNG and then nothing").unwrap();
    let (ok, _, said) = headwater(&["eval", model, "--data", folder]);
    assert!(!ok && said.contains("HW-R002") && said.contains(image.to_str().unwrap()), "{said}");
}

#[test]
fn images_are_changed_in_training_alone_and_by_their_number() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, file) = (dir.path().join("digits"), dir.path().join("digits.safetensors"));
    write(&folder, &file);
    let (model, data) = (example("digits_vit.pt2"), folder.to_str().unwrap().to_string());
    let settings = dir.path().join("train.toml");
    let text = "steps = 6\nbatch = 32\nseed = 3\n[optimizer]\nname = \"adamw\"\n[data.augment]\nflip = 0.5\ncrop = 2\n";
    std::fs::write(&settings, text).unwrap();
    let run = |data: &str, out: Option<&str>, more: &[&str]| {
        let out = out.map(|o| dir.path().join(o).to_str().unwrap().to_string());
        let mut args = vec!["train", model.to_str().unwrap(), "--data", data, "--eval", data];
        out.iter().for_each(|o| args.extend(["--out", o.as_str()]));
        args.extend(more);
        let (ok, trained, said) = headwater(&args);
        assert!(ok, "{said}");
        [trained["last_loss"].as_f64().unwrap(), trained["evaluation"]["loss"].as_f64().unwrap()]
    };
    let config = ["--config", settings.to_str().unwrap()];
    let of = |more: &[&'static str]| [&config[..], more].concat();
    let one = run(&data, None, &of(&["--threads", "1"]));
    let two = run(&data, None, &of(&["--threads", "2"]));
    assert_eq!(one, two);
    // Black is 0 here, as around tensors.
    assert_eq!(run(file.to_str().unwrap(), None, &config), one);
    let plain = run(&data, None, &["--steps", "6", "--batch", "32", "--seed", "3"]);
    assert!(one[0] != plain[0] && one[1] != plain[1], "{one:?} {plain:?}");
    // Interrupted by its number of steps, and gone on with: into the second pass of 12 steps over the data.
    let whole = run(&data, Some("whole"), &of(&["--steps", "14"]));
    run(&data, Some("parts"), &of(&["--steps", "5"]));
    let parts = run(&data, Some("parts"), &of(&["--steps", "14", "--resume"]));
    assert_eq!(parts, whole);
    // Evaluation sees the images as they are: at a rate of 0 those of the export.
    let still = run(&data, None, &of(&["--steps", "1", "--lr", "0"]));
    let (_, scores, _) = headwater(&["eval", model.to_str().unwrap(), "--data", &data, "--batch", "32"]);
    assert_eq!(Some(still[1]), scores["scores"]["loss"].as_f64());
}
