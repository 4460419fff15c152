// Package twice is. // want godoclint
package twice
