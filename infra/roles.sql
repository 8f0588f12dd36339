-- Two databases, each with a role of its own: Prefect's, and the privacy ledger's. Run by psql, once, in an empty server.
\set ON_ERROR_STOP on
\getenv prefect_password PREFECT_PASSWORD
\getenv ledger_password LEDGER_PASSWORD
CREATE ROLE prefect LOGIN PASSWORD :'prefect_password';
CREATE ROLE ledger LOGIN PASSWORD :'ledger_password';
CREATE DATABASE prefect OWNER prefect;
CREATE DATABASE ledger OWNER ledger;
REVOKE CONNECT, TEMPORARY ON DATABASE prefect, ledger FROM PUBLIC;
