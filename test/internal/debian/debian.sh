#!/bin/sh
# Takes programs out of Debian's packages, with what they need beside what this host has, and installs nothing.
#   debian.sh DIRECTORY PACKAGE...
set -eu
dir=$1
shift
rm -rf --one-file-system "$dir.new"
mkdir -p "$dir.new/debs/partial"

fetch() {
	apt-get -qq -o Dir::Cache::archives="$dir.new/debs" -o APT::Sandbox::User=root -o Debug::NoLocking=1 \
		install --download-only --reinstall --yes --no-install-recommends "$@"
}
# A host that has never asked, or not for long, does not know where the packages are.
fetch "$@" || { apt-get -qq update && fetch "$@"; }
for deb in "$dir.new"/debs/*.deb; do
	dpkg-deb --extract "$deb" "$dir.new"
done
# Nobody looks at pages and their scripts here; they would be most of it.
rm -rf "$dir.new/debs" "$dir.new"/usr/share/doc "$dir.new"/usr/share/javascript "$dir.new"/usr/share/nodejs "$dir.new"/usr/share/fonts
mv -T "$dir.new" "$dir"
