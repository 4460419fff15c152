# What packaging/build, bottlerocket/build and packaging/queue/image have in common: which version this is, when it was
# made, what it is linked with, and what an image is made of. They run it at the project's top.

# version_from_git prints the release that a tag names; what comes after it sorts after it, and what comes before the
# first tag before that.
version_from_git() {
	local described next
	next=$(sed -n 's/^- semver: //p' packaging/changelog.yaml | head -n 1)
	if described=$(git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null); then
		described=${described#v}
		sed -E 's/-([0-9]+)-g/+\1.g/; s/-dirty$/+dirty/' <<<"$described"
	elif git rev-parse --quiet --verify HEAD >/dev/null 2>&1; then
		echo "$next~$(git rev-list --count HEAD).g$(git rev-parse --short=12 HEAD)"
	else
		echo "$next~0"
	fi
}

# linked_modules [PROGRAM...] prints what nth, or other programs, are linked with, and under which licenses, which must be
# passed on with them.
linked_modules() {
	[ $# -gt 0 ] || set -- nth
	GOOS=linux go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' "${@/#/./cmd/}" |
		sort -u | while read -r path release dir; do
		printf '%s %s\n\n' "$path" "$release"
		find "$dir" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) | sort | xargs -r -d '\n' cat
		printf '\n%s\n\n' ------------------------------------------------------------------------
	done
}

# pages OUTPUT CONFIG puts the pages of the documentation there that a package's configuration names as being there. A link to
# anything that is not shipped with them becomes one to the project's own place, at the commit that the package is made from.
pages() {
	local names at=https://github.com/nth-project/nth/blob/${commit/unknown/main}
	mapfile -t names < <(sed -nE "s#^.*src: \"\\$\{STAGE\}/doc/${1##*/}/([a-z-]+)\.md\".*#\1#p" "$2")
	mkdir -p "$1"
	for name in "${names[@]}"; do
		sed -E -e "s#\]\(\.\./#](@/#g" -e 's#\]\(([a-z-]+\.(md|svg|txt))#](@/docs/\1#g' \
			-e "s#\]\(@/docs/($(IFS='|' && echo "${names[*]}"))\.md#](\1.md#g" -e "s#\]\(@/#]($at/#g" "docs/$name.md" >"$1/$name.md"
	done
}

# manual OUTPUT PROGRAM puts the manual pages of a program's commands into OUTPUT/man, and the shells' completions into OUTPUT/completions.
manual() {
	TZ=UTC CGO_ENABLED=0 go run -trimpath -tags manual "./cmd/$2" manual "packaging/man/$2.md" "$1"
	cp "packaging/man/$2.toml.5" "$1/man/"
}

# program OUTPUT ARCHITECTURE [PROGRAM] builds nth, or another program, as it is released. Where BUILT names a directory, each is
# built once, and what needs it again gets it from there.
program() {
	local shared=github.com/nth-project/nth/cmd/internal/cli name=${3:-nth}
	local built=${BUILT:+$BUILT/$2/$name}
	if [ -z "$built" ] || [ ! -e "$built" ]; then
		GOOS=linux GOARCH=$2 CGO_ENABLED=0 go build -trimpath \
			-ldflags "-s -w -X $shared.version=$VERSION -X $shared.commit=$commit" -o "${built:-$1}" "./cmd/$name"
	fi
	[ -z "$built" ] || install -D -m 0755 "$built" "$1"
}

# image PROGRAM DESCRIPTION FLAG... -- [ARCHITECTURE...] makes the image of nth, or another program, in $output.
image() {
	local name=$1 description=$2 flags=() programs=() arch
	shift 2
	while [ "$1" != -- ]; do
		flags+=("$1")
		shift
	done
	shift
	[ $# -gt 0 ] || set -- amd64 arm64
	linked_modules "$name" >"$stage/linked-modules.txt"
	for arch; do
		program "$stage/$name.$arch" "$arch" "$name"
		programs+=("$arch=$stage/$name.$arch")
	done
	# A tag has no + and no ~.
	CGO_ENABLED=0 go -C test/tools/image run . build --output "$output" --name "$name" "${flags[@]}" --tag "${VERSION//[+~]/-}" \
		--label org.opencontainers.image.title="$name" \
		--label org.opencontainers.image.description="$description" \
		--label org.opencontainers.image.url=https://github.com/nth-project/nth \
		--label org.opencontainers.image.licenses=Apache-2.0 \
		--label org.opencontainers.image.version="$VERSION" \
		--label org.opencontainers.image.revision="$commit" \
		--file "/usr/share/doc/$name/LICENSE=$PWD/LICENSE" \
		--file "/usr/share/doc/$name/linked-modules.txt=$stage/linked-modules.txt" \
		"${programs[@]}"
}

VERSION=${version:-$(version_from_git)}
# Where there is no commit, some moment that does not pass.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1763683200)}
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
export VERSION SOURCE_DATE_EPOCH
