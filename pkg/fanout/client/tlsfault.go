package client

import (
	"fmt"
	"strings"
)

// endedError is a fault told by no more than that the peer ended the connection before it
// said a word. One that goes away does so too, or what stands before it.
type endedError struct{ text string }

func (e endedError) Error() string { return e.text }

// ended says whether a connection was ended by the peer.
func ended(text string) bool {
	return strings.Contains(text, ": EOF") || strings.Contains(text, "connection reset") || strings.Contains(text, "broken pipe")
}

// tlsFault says at which side of a connection TLS has failed, and what mends it;
// empty for another error. secured is whether this side speaks TLS. (What grpc
// returns is a text; what follows "remote error" the other side has said.)
func tlsFault(instance, text string, secured bool) string {
	says := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	why, mend := "", ""
	switch {
	case !secured && ended(text) && says("server preface"):
		why = "upstream %s ends the connection before a word (%s)"
		mend = "where it serves TLS, set tls of the source; else the address must be a node's fan-out port"
	case !secured:
		return ""
	case says("remote error: tls: certificate required"):
		why, mend = "upstream %s asks who reads, and this node shows no certificate (%s)", "set one that the upstream's client authority has signed, or a token where it takes tokens"
	case says("remote error: tls: unknown certificate authority", "remote error: tls: bad certificate", "remote error: tls: unknown certificate",
		"remote error: tls: expired certificate", "remote error: tls: unsupported certificate", "remote error: tls: revoked certificate"):
		why, mend = "upstream %s refuses the certificate of this node (%s)", "use one that is valid, for clients, and that the upstream's client authority has signed"
	case says("remote error: tls:"):
		why, mend = "upstream %s gives the TLS handshake up (%s)", "its log says why: look at its certificate and key first"
	case says("signed by unknown authority"):
		why, mend = "this node does not trust the certificate of upstream %s (%s)", "set the authority of the source's tls to the one that has signed it"
	case says("certificate is valid for", "is not valid for any names", "cannot validate certificate for", "doesn't contain any IP SANs"):
		why, mend = "the certificate of upstream %s is for another name (%s)", "read from a name that it is for, or set serverName of the source's tls to one, or give the upstream a certificate for this name"
	case says("has expired or is not yet valid"):
		why, mend = "the certificate of upstream %s is not valid now (%s)", "renew it there, or set this machine's clock"
	case says("incompatible key usage"):
		why, mend = "the certificate of upstream %s is not one for servers (%s)", "give the upstream one with the extended key usage serverAuth"
	case says("x509:", "tls: failed to verify"):
		why, mend = "this node does not accept the certificate of upstream %s (%s)", "replace it there"
	case says("first record does not look like a TLS handshake"), ended(text) && says("authentication handshake failed"):
		why, mend = "upstream %s does not speak TLS, and this node does (%s)", "serve TLS there, or take tls out of the source"
	default:
		return ""
	}
	return fmt.Sprintf(why+": "+mend, instance, text)
}
