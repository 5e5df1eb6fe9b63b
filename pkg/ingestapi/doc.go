// Package ingestapi serves a node's ingest source to writers: over HTTP as JSON
// (POST /v1/write), and over gRPC (service tributary.ingest.v1.Ingest); and it has a
// small client. docs/ingest.md describes both for users.
//
// A JSON number is taken with its digits as they are written; a string is a
// value in PostgreSQL's text form. What a batch may not do is said in a sentence,
// with a code that programs go by.
package ingestapi
