# shellcheck shell=bash
# Parts of scripts/release: a tree of files as installed, and its packages. scripts/release sets
# version, out, pages, scratch, arch and tree.
# shellcheck disable=SC2154

# Files have the commit's time, so that the same source gives the same packages.
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
# Packages contain the modes of folders and files.
umask 022

# plant PROGRAM TREE: puts every file where an installed system has it.
plant() {
  local program=$1 tree=$2 doc=$2/usr/share/doc/sluicegate page
  install -D -m 755 "$program" "$tree/usr/bin/sluicegate"
  install -D -m 644 distribution/systemd/sluicegate.service "$tree/usr/lib/systemd/system/sluicegate.service"
  install -D -m 640 distribution/sluicegate.yaml "$tree/etc/sluicegate/sluicegate.yaml"
  install -D -m 644 "$pages/bash" "$tree/usr/share/bash-completion/completions/sluicegate"
  install -D -m 644 "$pages/zsh" "$tree/usr/share/zsh/vendor-completions/_sluicegate"
  install -D -m 644 "$pages/fish" "$tree/usr/share/fish/vendor_completions.d/sluicegate.fish"
  for page in "$pages"/man/*; do
    install -D -m 644 "$page" "$tree/usr/share/man/man1/${page##*/}"
    gzip -9n "$tree/usr/share/man/man1/${page##*/}"
  done
  install -D -m 644 -t "$doc" distribution/prometheus/sluicegate.rules.yaml distribution/grafana/sluicegate.json distribution/keda/scaledobject.yaml
  install -D -m 644 -t "$doc" LICENSE-MIT LICENSE-APACHE CHANGELOG.md docs/sluicegate.yaml docs/sluicegate.schema.json "$scratch/THIRD-PARTY-LICENSES"
  find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

# Prints the architecture's name in Debian and in images.
debian_arch() { case $arch in x86_64) echo amd64 ;; aarch64) echo arm64 ;; esac; }

pack_tar() {
  tar -C "$tree" --owner=0 --group=0 --numeric-owner --sort=name --mtime="@$SOURCE_DATE_EPOCH" -cf - usr etc |
    gzip -9n >"$out/sluicegate-$version-$arch-linux.tar.gz"
}

pack_deb() {
  local deb=$scratch/deb-$arch file
  cp -a "$tree" "$deb"
  # Debian's policy for the copyright file: the licenses, and where the other ones are.
  {
    printf 'Sluicegate is licensed under MIT OR Apache-2.0, at your option: LICENSE-MIT and LICENSE-APACHE next to this file.\n'
    printf 'THIRD-PARTY-LICENSES has the licences of what is linked in.\n'
  } >"$deb/usr/share/doc/sluicegate/copyright"
  mkdir "$deb/DEBIAN"
  sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$(debian_arch)/" -e "s/@KIB@/$(du -sk --exclude=DEBIAN "$deb" | cut -f1)/" \
    distribution/debian/control >"$deb/DEBIAN/control"
  for file in postinst prerm postrm; do install -m 755 "distribution/debian/$file" "$deb/DEBIAN/$file"; done
  install -m 644 distribution/debian/conffiles "$deb/DEBIAN/conffiles"
  (cd "$deb" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  dpkg-deb --root-owner-group --build "$deb" "$out/sluicegate_${version}_$(debian_arch).deb"
}

pack_rpm() {
  rpmbuild --quiet -bb --target "$arch" --define "_topdir $scratch/rpm-$arch" --define "tree $tree" --define "version $version" \
    --define "use_source_date_epoch_as_buildtime 1" distribution/rpm/sluicegate.spec
  cp "$scratch/rpm-$arch"/RPMS/*/*.rpm "$out"
}

# Builds the image of the Dockerfile's last stage, as an archive for `docker load`, `podman load`,
# `ctr images import`, `skopeo copy`.
pack_image() {
  local image=$scratch/image-$arch archive=$out/sluicegate-$version-$arch-image.tar
  install -D -m 755 "$tree/usr/bin/sluicegate" "$image/image/usr/bin/sluicegate"
  install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$image/image/etc/ssl/certs/ca-certificates.crt"
  rm -f "$archive"
  storage buildah build --isolation chroot --pull-never --format docker --arch "$(debian_arch)" --timestamp "$SOURCE_DATE_EPOCH" \
    --build-context "build=$image" --file Dockerfile --tag "sluicegate:$version" "$image"
  storage buildah push "sluicegate:$version" "docker-archive:$archive:sluicegate:$version"
}

# storage PROGRAM ARGUMENTS...: runs the program with a private image storage, which is deleted with
# this script's folder.
storage() {
  STORAGE_DRIVER=vfs "$1" --root "$scratch/images" --runroot "$scratch/images-run" "${@:2}"
}

# licences TARGET FILE: writes the licenses of everything linked in, with their texts from the
# packages.
licences() {
  local name version license folder file registry
  registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
  cargo fetch --locked --target "$1"
  cargo tree --locked --package sluicegate-cli --edges normal --target "$1" --prefix none --format '{p}|{l}' |
    sed -e 's/ (\*)$//' -e '/ (\//d' -e 's/ (proc-macro)//' | LC_ALL=C sort -u >"$scratch/linked"
  {
    printf 'The program has these packages of crates.io linked in, and the standard library of Rust (MIT OR Apache-2.0) with musl (MIT).\n'
    while IFS='| ' read -r name version license; do
      printf '\n==== %s %s: %s\n' "$name" "${version#v}" "$license"
      folder=$(find "$registry" -maxdepth 2 -type d -name "$name-${version#v}" -print -quit)
      [[ -n $folder ]] || { echo "error: no source of $name $version" >&2; return 1; }
      while read -r file; do
        printf -- '\n---- %s\n\n' "${file##*/}"
        cat "$file"
      done < <(find "$folder" -maxdepth 1 -type f \( -iname 'licen[sc]e*' -o -iname 'copying*' -o -iname 'notice*' -o -iname 'unlicense*' \) | LC_ALL=C sort)
    done <"$scratch/linked"
  } >"$2"
}
