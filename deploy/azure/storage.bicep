// A storage account with the tables of both layouts of the ledger.

param name string
param location string
param tablePrefix string
param principalId string

// As Lucius spells them in Azure, without the prefix and the Z after it.
var tables = [
  'luciusZ0ledger'
  'ZJobs'
  'ZSteps'
  'ZOutbox'
  'ZEvents'
  'jobZ1idempotency'
  'luciusZ0inflight'
  'luciusZ0jobZ0index'
  'luciusZ0due'
  'luciusZ0dispatch'
  'luciusZ0dlq'
  'luciusZ0retention'
  'luciusZ0webhooks'
  'luciusZ0meta'
]

// Storage Table Data Contributor
var tableContributor = '0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3'

resource account 'Microsoft.Storage/storageAccounts@2023-05-01' = {
  name: name
  location: location
  kind: 'StorageV2'
  sku: {
    name: 'Standard_ZRS'
  }
  properties: {
    allowBlobPublicAccess: false
    allowSharedKeyAccess: false
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
  }
}

resource tableService 'Microsoft.Storage/storageAccounts/tableServices@2023-05-01' = {
  parent: account
  name: 'default'
}

resource table 'Microsoft.Storage/storageAccounts/tableServices/tables@2023-05-01' = [for tableName in tables: {
  parent: tableService
  name: '${tablePrefix}Z${tableName}'
}]

resource mayUseTables 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(account.id, principalId, tableContributor)
  scope: account
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', tableContributor)
  }
}

output tableEndpoint string = account.properties.primaryEndpoints.table
