// The tool that writes what goes with the files of a release: see packaging/release.
module github.com/nth-project/nth/test/tools/release

go 1.26.0

require (
	github.com/in-toto/attestation v1.2.0
	github.com/spdx/tools-golang v0.5.7
	google.golang.org/protobuf v1.36.11
)

require github.com/anchore/go-struct-converter v0.1.0 // indirect
