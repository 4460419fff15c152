// Package rules holds no code. Its tests keep true what docs/design.md says about all the other packages: who may
// import whom, where the outside world may be touched, and that other pages say what is so. What can be said of a file by
// itself is the linter's, in .golangci.yml.
//
// A finding names the place, the rule and its reason. Where a rule has become wrong, change the page first and then the
// table here, in a commit of its own that says why. A permission that nobody uses is a finding as well.
package rules
