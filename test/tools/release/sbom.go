package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
)

// unknown is what a field says of which nothing is stated.
const unknown = "NOASSERTION"

// sbom writes what a program is made of, as SPDX 2.3.
func sbom(from origin, program string, out io.Writer) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("reading what %s is made of: %w", program, err)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	name := filepath.Base(program)
	top := &spdx.Package{
		PackageName: name, PackageSPDXIdentifier: "Program", PackageVersion: from.version,
		PackageDownloadLocation: unknown, PackageLicenseDeclared: "Apache-2.0", PackageLicenseConcluded: "Apache-2.0",
		PackageChecksums:      []spdx.Checksum{{Algorithm: spdx.SHA256, Value: sum}},
		PrimaryPackagePurpose: "APPLICATION", PackageCopyrightText: unknown,
	}
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: name + "-" + from.version,
		// It names this very file, and is no address.
		DocumentNamespace: "https://" + info.Main.Path + "/sbom/" + name + "/" + sum,
		CreationInfo: &spdx.CreationInfo{
			Created:  from.date.Format(time.RFC3339),
			Creators: []spdx.Creator{{CreatorType: "Tool", Creator: "nth-release"}, {CreatorType: "Organization", Creator: "The nth authors"}},
		},
		Packages: []*spdx.Package{top},
	}
	relate(doc, "DOCUMENT", "DESCRIBES", top)
	for _, made := range append([]*spdx.Package{standardLibrary(info.GoVersion)}, modules(info.Deps)...) {
		doc.Packages = append(doc.Packages, made)
		relate(doc, string(top.PackageSPDXIdentifier), "CONTAINS", made)
	}
	return json.Write(doc, out, json.Indent("  "))
}

func relate(doc *spdx.Document, one, how string, other *spdx.Package) {
	doc.Relationships = append(doc.Relationships, &spdx.Relationship{
		RefA: common.MakeDocElementID("", one), RefB: common.MakeDocElementID("", string(other.PackageSPDXIdentifier)), Relationship: how,
	})
}

// modules are those that are linked into a program, in the linker's order.
func modules(linked []*debug.Module) []*spdx.Package {
	var all []*spdx.Package
	for i, m := range linked {
		if m.Replace != nil {
			m = m.Replace
		}
		all = append(all, component(fmt.Sprintf("Module-%d", i+1), m.Path, m.Version, "pkg:golang/"+m.Path+"@"+m.Version))
	}
	return all
}

// standardLibrary is Go's own part of a program. A toolchain may have words behind its version.
func standardLibrary(release string) *spdx.Package {
	version, _, _ := strings.Cut(strings.TrimPrefix(release, "go"), " ")
	return component("Go", "stdlib", version, "pkg:golang/stdlib@"+version)
}

// component is a part of a program, which scanners know by its package URL.
func component(id, name, version, url string) *spdx.Package {
	return &spdx.Package{
		PackageName: name, PackageSPDXIdentifier: common.ElementID(id), PackageVersion: version,
		PackageDownloadLocation: unknown, PackageLicenseDeclared: unknown, PackageLicenseConcluded: unknown, PackageCopyrightText: unknown,
		PackageExternalReferences: []*spdx.PackageExternalReference{
			{Category: spdx.CategoryPackageManager, RefType: spdx.PackageManagerPURL, Locator: url},
		},
	}
}
