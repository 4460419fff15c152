// Package rules holds no code. Its tests keep true what docs/design.md says about all the other packages: who may
// import whom, where the outside world may be touched, and how large things may get.
//
// A finding names the place, the rule and its reason. Where a rule has become wrong, change the page first and then the
// table here, in a commit of its own that says why.
package rules
